// How search ranks pages: Sphinx's own figures: guides first, the project's own pages last.
const weights = [
  [/^(CHANGELOG|CONTRIBUTING|tests|pipeline)/, 0.25],
  [/^errors\/E/, 0.5],
  [/^(questions|tutorial|howto|troubleshooting)/, 1.25],
];
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score]) => score * (weights.find(([pages]) => pages.test(page)) ?? [, 1])[1],
};
