#include <CLI/CLI.hpp>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/folding_rows.h"
#include "colossal/cli/bench/table.h"

namespace colossal::cli {
namespace {

constexpr char kFoldingLegend[] =
    "Elements that all ranks together send in one block of a folding model (sequence.mode axial), with the published\n"
    "features. sent: counted / formula of docs/explanation/sequence-parallel.md.\n";

const BenchTable& folding_table() {
  static const BenchTable table({{.title = "ranks", .width = 5, .key = "ranks"},
                                 {.title = "what", .width = -12, .key = "what"},
                                 {.title = "phase", .width = -10, .key = "phase"},
                                 {.title = "sent", .width = 14, .key = "sent"},
                                 {.title = "formula", .width = 14, .key = "formula"}});
  return table;
}

}  // namespace

int bench_folding(const Arguments& arguments) {
  CLI::App app("Counts what ranks send in a block of AlphaFold 2 and of ESMFold, and compares it with the formulas.",
               "colossal bench folding");
  std::vector<int64_t> ranks{1, 2, 4};
  FoldingWork work;
  bool as_json = false;
  add_ranks(app, ranks);
  app.add_option("--alignment", work.alignment, "rows of the alignment")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--residues", work.residues, "residues of the chain")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_flag("--json", as_json, "print a JSON object instead of a table");
  parse(app, arguments);

  if (!as_json) {
    std::printf("%s\n", kFoldingLegend);
    folding_table().print_head();
  }
  nlohmann::ordered_json all{{"rows", nlohmann::ordered_json::array()}};
  for (const int64_t count : ascending(ranks))
    for (const FoldingRow& row : folding_rows(count, work)) {
      const BenchRow cells{row.ranks, row.what, row.phase, row.sent, row.formula};
      all["rows"].push_back(folding_table().json(cells));
      if (!as_json) folding_table().print_row(cells);
    }
  if (as_json) std::puts(all.dump(2).c_str());
  return 0;
}

}  // namespace colossal::cli
