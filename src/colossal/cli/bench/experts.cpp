#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/base/json.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/expert_layer.h"
#include "colossal/cli/bench/table.h"
#include "colossal/nn/recompute.h"
#include "colossal/parallel/expert/traffic.h"
#include "colossal/report/plot.h"

namespace colossal::cli {
namespace {

struct ExpertRow {
  int64_t ranks = 0;
  bool is_recomputed = false;
  ExpertLayerCost cost;
  int64_t formula = 0;

  const char* recompute() const { return is_recomputed ? "block" : "none"; }
};

template <auto Member>
double cost_of(const ExpertRow& row) {
  return static_cast<double>(row.cost.*Member);
}

const BenchTable& expert_table() {
  static const BenchTable table({{.title = "ranks", .width = 5, .key = "ranks"},
                                 {.title = "recompute", .width = -9, .key = "recompute"},
                                 {.title = "remote", .width = 8, .key = "remote"},
                                 {.title = "sent", .width = 11, .key = "sent"},
                                 {.title = "formula", .width = 11, .key = "formula"},
                                 {.title = "counts", .width = 7, .key = "counts"},
                                 {.title = "sums", .width = 7, .key = "sums"},
                                 {.title = "other", .width = 6, .key = "other"},
                                 {.title = "calls", .width = 5, .key = "calls"},
                                 {.title = "step, ms", .width = 9, .digits = 2, .unit = 1e-3, .key = "seconds"},
                                 {.title = "expert load", .width = 11, .digits = 3, .key = "expert_load"},
                                 {.title = "rank load", .width = 9, .digits = 3, .key = "rank_load"}});
  return table;
}

BenchRow cells_of(const ExpertRow& row) {
  const ExpertLayerCost& cost = row.cost;
  return {row.ranks, row.recompute(), cost.remote, cost.sent,    row.formula,      cost.counts,
          cost.sums, cost.other,      cost.calls,  cost.seconds, cost.expert_load, cost.rank_load};
}

constexpr const char* kExpertLegend =
    "One mixture of experts in fp32, forward and backward. Sent: elements of hidden states in dispatch and combine; "
    "formula:\n4 x hidden x remote assignments, with recomputation of blocks 6 x (with nodes: see --help). Remote: "
    "assignments whose\nexpert is on another rank than the token, counted without the layer. Counts: numbers of tokens "
    "and of experts. Sums:\nelements of all_reduces for the balance loss. All these are sums over the ranks. Calls: of "
    "the rank with most.\nStep: median of the slowest rank. Loads: the busiest expert or rank over the mean.\n";

std::string title_of_experts(const ExpertWorkload& w) {
  return concat("hidden ", w.hidden, ", ", w.used, " of ", w.experts, " experts of ", w.ffn, ", batch ", w.batch,
                ", sequence ", w.sequence, w.node > 0 ? concat(", nodes of ", w.node) : "", ": ", w.assignments(),
                " assignments");
}

nlohmann::ordered_json json_of(const ExpertWorkload& work, const std::vector<ExpertRow>& rows,
                               const std::vector<std::string>& left_out) {
  nlohmann::ordered_json all{{"hidden", work.hidden},
                             {"ffn", work.ffn},
                             {"experts", work.experts},
                             {"used", work.used},
                             {"batch", work.batch},
                             {"sequence", work.sequence},
                             {"node", work.node},
                             {"assignments", work.assignments()},
                             {"rows", nlohmann::ordered_json::array()},
                             {"left_out", left_out}};
  for (const ExpertRow& row : rows) all["rows"].push_back(expert_table().json(cells_of(row)));
  return all;
}

std::vector<report::Series> lines_of_experts(const std::vector<ExpertRow>& rows, double (*value)(const ExpertRow&)) {
  std::vector<report::Series> all{{"recompute none", "first", {}, {}}, {"recompute block", "second", {}, {}}};
  for (const ExpertRow& row : rows) {
    report::Series& series = all[row.is_recomputed ? 1 : 0];
    series.x.push_back(static_cast<double>(row.ranks));
    series.y.push_back(value(row));
  }
  return all;
}

std::string page_of_experts(const ExpertWorkload& work, const std::vector<ExpertRow>& rows, const std::string& notes) {
  const report::Plot plots[] = {
      {.title = "Elements of hidden states sent, all ranks",
       .x_label = "ranks",
       .from_zero = true,
       .series = lines_of_experts(rows, cost_of<&ExpertLayerCost::sent>)},
      {.title = "Milliseconds of a step",
       .x_label = "ranks",
       .from_zero = true,
       .series = lines_of_experts(rows, [](const ExpertRow& row) { return row.cost.seconds * 1e3; })},
      {.title = "Assignments of the busiest rank over the mean",
       .x_label = "ranks",
       .series = lines_of_experts(rows, cost_of<&ExpertLayerCost::rank_load>)},
  };
  std::vector<BenchRow> cells;
  for (const ExpertRow& row : rows) cells.push_back(cells_of(row));
  return bench_page("Experts", title_of_experts(work), plots, kExpertLegend,
                    expert_table().html(cells) + "<pre>" + html_text(notes) + "</pre>");
}

/// Returns the two rows of a number of ranks.
std::vector<ExpertRow> rows_of_ranks(const ExpertWorkload& work, int64_t ranks) {
  std::vector<ExpertRow> rows;
  for (const bool is_recomputed : {false, true}) {
    ExpertRow row{.ranks = ranks, .is_recomputed = is_recomputed};
    row.cost = measured_expert_layer(work, ranks, is_recomputed ? nn::Recompute::Block : nn::Recompute::None);
    row.formula = work.node > 0 ? parallel::hidden_states_sent(row.cost.node_rows, work.hidden, is_recomputed)
                                : parallel::hidden_states_sent(row.cost.remote, work.hidden, is_recomputed);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

int bench_experts(const Arguments& arguments) {
  CLI::App app(
      "Runs one mixture of experts, forward and backward, with its experts split over ranks. Compares the hidden "
      "states that ranks send with the formula.",
      "colossal bench experts");
  ExpertWorkload work;
  std::vector<int64_t> ranks{1, 2, 4};
  std::string report;
  bool as_json = false;
  const auto size = [&](const char* flag, int64_t& value, const char* help, int64_t max) {
    app.add_option(flag, value, help)->capture_default_str()->check(CLI::Range(int64_t{1}, max));
  };
  size("--hidden", work.hidden, "width of the hidden state", 1 << 16);
  size("--ffn", work.ffn, "features inside one expert", 1 << 16);
  size("--experts", work.experts, "number of experts", 1 << 12);
  size("--used", work.used, "number of experts that each token goes through", 1 << 12);
  size("--batch", work.batch, "number of rows of the whole batch", 1 << 16);
  size("--sequence", work.sequence, "tokens per row", 1 << 20);
  size("--rounds", work.rounds, "timed steps per row; the median is reported", 1000);
  app.add_option("--node", work.node,
                 "ranks of a node: a token is sent to each node once; formula: hidden x (tokens to other nodes + 3 x "
                 "assignments to other nodes + 4 x assignments to other positions in a node); 0 = straight to each "
                 "rank")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  add_ranks(app, ranks);
  app.add_flag("--json", as_json, "print a JSON object instead of a table");
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  if (work.used > work.experts)
    throw UsageError(concat("--used must be at most --experts: got ", work.used, " of ", work.experts));
  ranks = ascending(ranks);

  if (!as_json) {
    std::printf("%s\n%s\n", title_of_experts(work).c_str(), kExpertLegend);
    expert_table().print_head();
  }
  std::vector<ExpertRow> rows;
  std::vector<std::string> left_out;
  for (const int64_t count : ranks) {
    try {
      for (const ExpertRow& row : rows_of_ranks(work, count)) {
        rows.push_back(row);
        if (!as_json) expert_table().print_row(cells_of(row));
      }
    } catch (const Error& error) {
      left_out.push_back(concat(count, count == 1 ? " rank" : " ranks", ": left out: ", error.message()));
    }
  }
  std::string notes;
  for (const std::string& line : left_out) notes += line + "\n";
  if (as_json)
    std::puts(json_of(work, rows, left_out).dump(2).c_str());
  else if (!notes.empty())
    std::printf("\n%s", notes.c_str());
  if (!report.empty()) write_file(report, page_of_experts(work, rows, notes));
  return 0;
}

}  // namespace colossal::cli
