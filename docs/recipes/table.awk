# Print a Markdown table of the stages in order, with measured values and the paper's.
#
#   awk -F '\t' -v recipe=NAME -v order="STAGE ..." -v names="MEASURE ..." -f table.awk paper.tsv results.tsv
NR == FNR {
  if ($1 == recipe) {
    what[$2] = $3
    printed[$2] = $4 " | " $5 " | " $6
  }
  next
}
{
  sub(/\.test$/, "", $1)
  found[$1, $2] = $3
}
END {
  measures = split(names, measure, " ")
  head = "| stage | what |"
  rule = "|---|---|"
  for (m = 1; m <= measures; m++) {
    head = head " " measure[m] " |"
    rule = rule "---|"
  }
  print head " paper: RR@10 | R@1000 | where |"
  print rule "---|---|---|"
  stages = split(order, stage, " ")
  for (s = 1; s <= stages; s++) {
    name = stage[s]
    row = "| " name " | " what[name] " |"
    for (m = 1; m <= measures; m++)
      row = row " " found[name, measure[m]] " |"
    print row " " (name in printed ? printed[name] : "- | - | -") " |"
  }
}
