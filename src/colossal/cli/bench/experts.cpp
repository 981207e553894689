#include "colossal/cli/bench/experts.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/cli/bench/expert_layer.h"
#include "colossal/nn/recompute.h"
#include "colossal/parallel/expert/traffic.h"
#include "colossal/report/html.h"
#include "colossal/report/plot.h"
#include "colossal/report/report_page.h"

namespace colossal::cli {
namespace {

struct ExpertRow {
  int64_t ranks = 0;
  bool is_recomputed = false;
  ExpertLayerCost cost;
  int64_t formula = 0;

  const char* recompute() const { return is_recomputed ? "block" : "none"; }
};

/// One value of the table and of the JSON object.
struct ExpertColumn {
  const char *title, *key;
  int width, digits;
  double unit;  ///< the table shows multiples of it; the JSON object has the value itself
  double (*value)(const ExpertRow&);
};

template <auto Member>
double cost_of(const ExpertRow& row) {
  return static_cast<double>(row.cost.*Member);
}

const ExpertColumn kExpertColumns[] = {
    {"remote", "remote", 8, 0, 1, cost_of<&ExpertLayerCost::remote>},
    {"sent", "sent", 11, 0, 1, cost_of<&ExpertLayerCost::sent>},
    {"formula", "formula", 11, 0, 1, [](const ExpertRow& row) { return static_cast<double>(row.formula); }},
    {"counts", "counts", 7, 0, 1, cost_of<&ExpertLayerCost::counts>},
    {"sums", "sums", 7, 0, 1, cost_of<&ExpertLayerCost::sums>},
    {"other", "other", 6, 0, 1, cost_of<&ExpertLayerCost::other>},
    {"calls", "calls", 5, 0, 1, cost_of<&ExpertLayerCost::calls>},
    {"step, ms", "seconds", 9, 2, 1e-3, cost_of<&ExpertLayerCost::seconds>},
    {"expert load", "expert_load", 11, 3, 1, cost_of<&ExpertLayerCost::expert_load>},
    {"rank load", "rank_load", 9, 3, 1, cost_of<&ExpertLayerCost::rank_load>},
};

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

std::string shown_value(const ExpertColumn& column, const ExpertRow& row) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", column.digits, column.value(row) / column.unit);
  return text;
}

void print_expert_head() {
  std::printf("ranks  %-9s", "recompute");
  for (const ExpertColumn& column : kExpertColumns) std::printf("  %*s", column.width, column.title);
  std::printf("\n");
}

void print_expert_row(const ExpertRow& row) {
  std::printf("%5lld  %-9s", static_cast<long long>(row.ranks), row.recompute());
  for (const ExpertColumn& column : kExpertColumns)
    std::printf("  %*s", column.width, shown_value(column, row).c_str());
  std::printf("\n");
  std::fflush(stdout);
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
  for (const ExpertRow& row : rows) {
    nlohmann::ordered_json one{{"ranks", row.ranks}, {"recompute", row.recompute()}};
    for (const ExpertColumn& column : kExpertColumns) {
      const double value = column.value(row);
      if (column.digits == 0)
        one[column.key] = static_cast<int64_t>(value);
      else
        one[column.key] = value;
    }
    all["rows"].push_back(one);
  }
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
  std::string out = "<section class='plots'>";
  for (const auto& plot : plots) out += report::render_plot(plot);
  out += "</section>\n<section class='card'><p>" + report::html_text(kExpertLegend) +
         "</p><div class='scroll'><table class='numbers'><tr><th>ranks</th><th>recompute</th>";
  for (const ExpertColumn& column : kExpertColumns) out += concat("<th>", column.title, "</th>");
  for (const ExpertRow& row : rows) {
    out += concat("</tr>\n<tr><td>", row.ranks, "</td><td>", row.recompute(), "</td>");
    for (const ExpertColumn& column : kExpertColumns) out += "<td>" + shown_value(column, row) + "</td>";
  }
  return report::render_page("Experts", title_of_experts(work),
                             out + "</tr></table></div><pre>" + report::html_text(notes) + "</pre></section>\n");
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
      ->capture_default_str()->check(CLI::Range(0, 256));
  app.add_option("--ranks", ranks, "numbers of ranks to measure; each rank is a thread")
      ->delimiter(',')->capture_default_str()->check(CLI::Range(1, 256));
  app.add_flag("--json", as_json, "print a JSON object instead of a table");
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  if (work.used > work.experts)
    throw UsageError(concat("--used must be at most --experts: got ", work.used, " of ", work.experts));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());

  if (!as_json) {
    std::printf("%s\n%s\n", title_of_experts(work).c_str(), kExpertLegend);
    print_expert_head();
  }
  std::vector<ExpertRow> rows;
  std::vector<std::string> left_out;
  for (const int64_t count : ranks) {
    try {
      for (const ExpertRow& row : rows_of_ranks(work, count)) {
        rows.push_back(row);
        if (!as_json) print_expert_row(row);
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
