#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/diffusion_rows.h"
#include "colossal/cli/bench/table.h"
#include "colossal/diffusion/step_traffic.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"

namespace colossal::cli {
namespace {

const BenchTable& diffusion_table() {
  static const BenchTable table({{.title = "ranks", .width = 5, .key = "ranks"},
                                 {.title = "mode", .width = -8, .key = "mode"},
                                 {.title = "what", .width = -40, .key = "what"},
                                 {.title = "sent", .width = 11, .key = "sent"},
                                 {.title = "formula", .width = 11, .key = "formula"}});
  return table;
}

BenchRow cells_of(const DiffusionRow& row) { return {row.ranks, row.mode, row.what, row.sent, row.formula}; }

constexpr const char* kDiffusionLegend =
    "Elements that all ranks together send. Rows: ranks that share the rows of a decoded picture exchange halos, sums "
    "of "
    "norms, keys and\nvalues, and the picture. Tensor: a pass of a UNet whose layers are cut (1d) sums one hidden "
    "state a "
    "ResNet\nand three a transformer. Guidance: a drawing step gathers the predictions of both passes. Dsp, ulysses "
    "and "
    "ring: a\nforward pass of two blocks of an STDiT, whose ranks split the places of its frames.\n";

/// The UNet of all rows.
constexpr const char* kPreset = "sd-1.5-tiny";

DiffusionRow step_row(const char* mode, const char* what, const distributed::ParallelConfig& layout, int64_t guidance) {
  const models::ModelShape shape = models::built_in().resolve({.name = kPreset});
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  return {.ranks = guidance * layout.ranks(),
          .mode = mode,
          .what = concat(what, " of ", kPreset, ", ", sizes.height, " x ", sizes.width, " cells"),
          .sent = diffusion::measured_step_traffic(shape, layout, guidance),
          .formula = diffusion::step_traffic(shape, layout, guidance)};
}

std::vector<DiffusionRow> tensor_mode(int64_t ranks) {
  return {step_row("tensor", "a pass", {.tensor = {.size = ranks}}, 1)};
}

/// Each pair of ranks shares the guidance of its pictures.
std::vector<DiffusionRow> guidance_mode(int64_t ranks) {
  require(ranks % 2 == 0, "bench", "guidance needs an even number of ranks: got ", ranks);
  return {step_row("guidance", "a step", {.data = ranks / 2}, 2)};
}

/// The modes, each with its rows for a number of ranks.
struct Mode {
  const char* name;
  std::vector<DiffusionRow> (*rows)(int64_t ranks);
};
constexpr Mode kModes[] = {{"rows", rows_mode},
                           {"tensor", tensor_mode},
                           {"guidance", guidance_mode},
                           {"dsp", [](int64_t ranks) { return two_axes_mode(ranks, "dsp"); }},
                           {"ulysses", [](int64_t ranks) { return two_axes_mode(ranks, "ulysses"); }},
                           {"ring", [](int64_t ranks) { return two_axes_mode(ranks, "ring"); }}};

}  // namespace

int bench_diffusion(const Arguments& arguments) {
  CLI::App app("Runs models that draw pictures on several ranks. Compares the elements that they send with formulas.",
               "colossal bench diffusion");
  std::vector<int64_t> ranks{1, 2, 4};
  bool as_json = false;
  add_ranks(app, ranks);
  app.add_flag("--json", as_json, "print a JSON object instead of a table");
  parse(app, arguments);

  if (!as_json) {
    std::printf("%s\n", kDiffusionLegend);
    diffusion_table().print_head();
  }
  nlohmann::ordered_json all{{"rows", nlohmann::ordered_json::array()}, {"left_out", nlohmann::ordered_json::array()}};
  for (const int64_t count : ascending(ranks)) {
    if (count == 1) continue;  // nothing is sent
    for (const Mode& mode : kModes) {
      try {
        for (const DiffusionRow& row : mode.rows(count)) {
          all["rows"].push_back(diffusion_table().json(cells_of(row)));
          if (!as_json) diffusion_table().print_row(cells_of(row));
        }
      } catch (const Error& error) {
        all["left_out"].push_back(concat(count, " ranks, ", mode.name, ": left out: ", error.message()));
      }
    }
  }
  if (as_json) std::puts(all.dump(2).c_str());
  if (!as_json)
    for (const auto& line : all["left_out"]) std::printf("\n%s\n", line.get<std::string>().c_str());
  return 0;
}

}  // namespace colossal::cli
