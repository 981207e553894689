#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/table.h"
#include "colossal/parallel/tensor/layer_cost.h"
#include "colossal/report/plot.h"

namespace colossal::cli {
namespace {

using parallel::LayerCost;
using parallel::LayerSizes;
using parallel::TensorConfig;

struct Row {
  TensorConfig config;
  LayerCost measured, formula;
  // Padded heads and features are the only costs that the formulas leave out.
  bool is_padded() const { return measured.parameter_bytes > formula.parameter_bytes * (1 + 1e-9); }
};

/// One value of the table.
struct Quantity {
  BenchColumn column;
  double LayerCost::* value;
};

const Quantity kQuantities[] = {
    {{"sent forward", 10, 0, 1, true}, &LayerCost::forward},
    {{"sent backward", 10, 0, 1, true}, &LayerCost::backward},
    {{"calls", 8, 0, 1, true}, &LayerCost::calls},
    {{"parameters, MiB", 9, 3, kMiB, true}, &LayerCost::parameter_bytes},
    {{"activations, MiB", 9, 3, kMiB, true}, &LayerCost::activation_bytes},
};

BenchTable table_of_layers() {
  std::vector<BenchColumn> columns{{"ranks", 5}, {"mode", -25}};
  for (const auto& q : kQuantities) columns.push_back(q.column);
  return BenchTable(std::move(columns));
}

BenchRow cells_of(const Row& row) {
  BenchRow cells{row.config.size, parallel::mode_name(row.config) + (row.is_padded() ? " *" : "")};
  for (const auto& q : kQuantities) cells.emplace_back(Compared{row.measured.*q.value, row.formula.*q.value});
  return cells;
}

std::string title_of(const LayerSizes& s) {
  return concat("hidden ", s.hidden, ", heads ", s.heads, ", batch ", s.batch, ", sequence ", s.sequence, ": b*s/h = ",
                report::short_number(static_cast<double>(s.batch * s.sequence) / static_cast<double>(s.hidden)));
}

constexpr const char* kLegend =
    "The four linear layers of one GPT layer in fp32, without biases. Each pair of columns: measured, formula.\nSent: "
    "elements that a rank sends. Activations: memory that a rank keeps from forward for backward.\n";

/// Returns for each cost the maximum over the ranks.
LayerCost largest(const std::vector<LayerCost>& ranks) {
  LayerCost most;
  for (const LayerCost& cost : ranks)
    for (const auto& q : kQuantities) most.*q.value = std::max(most.*q.value, cost.*q.value);
  return most;
}

/// Returns the minimum of each mode at each number of ranks: 2.5d has one row per depth.
std::vector<report::Series> lines(const std::vector<Row>& rows, double (*value)(const LayerCost&)) {
  const auto name_of = [](TensorConfig config) {
    config.depth = 1;
    return parallel::mode_name(config);
  };
  std::vector<std::string> names;
  for (const std::string& mode : parallel::mode_names())
    for (const Row& row : rows)
      if (row.config.mode == mode && std::find(names.begin(), names.end(), name_of(row.config)) == names.end())
        names.push_back(name_of(row.config));
  const char* const styles[] = {"first", "second", "third", "fourth", "fifth", "sixth", "seventh"};
  std::vector<report::Series> all;
  for (const std::string& name : names) {
    report::Series series{name, styles[all.size() % std::size(styles)], {}, {}};
    for (const Row& row : rows) {
      if (name_of(row.config) != name) continue;
      const auto x = static_cast<double>(row.config.size);
      const double y = value(row.measured);
      if (!series.x.empty() && series.x.back() == x) {
        series.y.back() = std::min(series.y.back(), y);
      } else {
        series.x.push_back(x);
        series.y.push_back(y);
      }
    }
    if (!series.x.empty()) all.push_back(series);
  }
  return all;
}

std::string page(const LayerSizes& sizes, const std::vector<Row>& rows, const std::string& notes) {
  const report::Plot plots[] = {
      {.title = "Elements sent per rank",
       .x_label = "ranks",
       .from_zero = true,
       .series = lines(rows, [](const LayerCost& c) { return c.forward + c.backward; })},
      {.title = "Activations kept per rank",
       .x_label = "ranks",
       .unit = report::PlotUnit::kBytes,
       .from_zero = true,
       .series = lines(rows, [](const LayerCost& c) { return c.activation_bytes; })},
      {.title = "Parameters per rank",
       .x_label = "ranks",
       .unit = report::PlotUnit::kBytes,
       .from_zero = true,
       .series = lines(rows, [](const LayerCost& c) { return c.parameter_bytes; })},
  };
  std::vector<BenchRow> cells;
  for (const Row& row : rows) cells.push_back(cells_of(row));
  return bench_page("Tensor parallelism", title_of(sizes), plots, kLegend,
                    table_of_layers().html(cells) + "<pre>" + html_text(notes) + "</pre>");
}

}  // namespace

int bench_tensor_parallel(const Arguments& arguments) {
  CLI::App app(
      "Runs the linear layers of one GPT layer under every mode of tensor parallelism and measures the traffic and "
      "memory of each rank.",
      "colossal bench tensor-parallel");
  LayerSizes sizes;
  std::vector<int64_t> ranks{1, 4, 8, 9, 16, 27, 64};
  std::string report;
  sizes.heads = 0;
  app.add_option("--hidden", sizes.hidden, "width of the hidden state")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--heads", sizes.heads,
                 "number of attention heads, which are not split between ranks; default: hidden / 16, or 1")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--batch", sizes.batch, "number of rows of the whole batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--sequence", sizes.sequence, "tokens per row")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  add_ranks(app, ranks);
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  if (sizes.heads == 0) sizes.heads = sizes.hidden % 16 == 0 ? sizes.hidden / 16 : 1;
  ranks = ascending(ranks);

  std::printf("%s\n%s\n", title_of(sizes).c_str(), kLegend);
  const BenchTable table = table_of_layers();
  table.print_head();
  std::vector<Row> rows;
  std::string notes;
  for (const int64_t count : ranks) {
    for (const TensorConfig& config : parallel::tensor_modes(count)) {
      try {
        parallel::check_layer(config, sizes);
      } catch (const Error& error) {
        notes += concat(count, count == 1 ? " rank, " : " ranks, ", parallel::mode_name(config),
                        ": left out: ", error.message(), "\n");
        continue;
      }
      rows.push_back(
          {config, largest(parallel::measured_cost(config, sizes)), parallel::published_cost(config, sizes)});
      table.print_row(cells_of(rows.back()));
    }
  }
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.is_padded(); })) {
    notes = "* heads or features are not divisible by the ranks: padded, which the formulas leave out\n" + notes;
  }
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
  if (!report.empty()) write_file(report, page(sizes, rows, notes));
  return 0;
}

}  // namespace colossal::cli
