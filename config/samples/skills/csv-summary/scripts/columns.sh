#!/bin/sh
# columns.sh FILE [COLUMN]: rows and columns of a CSV file without quoted commas,
# and the sum of a column, counted from 1.
set -eu
awk -F, -v column="${2:-0}" '
	NR == 1 { for (i = 1; i <= NF; i++) printf "column %d: %s\n", i, $i; next }
	column > 0 { sum += $column }
	END { printf "rows: %d\n", NR > 0 ? NR - 1 : 0; if (column > 0) printf "sum of column %d: %s\n", column, sum + 0 }
' "$1"
