#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/reference.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/report/draw_curves.h"
#include "colossal/run/config.h"
#include "colossal/run/own_tables.h"

namespace colossal::cli {
namespace {

constexpr int64_t kMaxSteps = 10'000'000;  // maximum steps of a picture
constexpr int kAcross = 2;                 // number of plots side by side in a terminal

struct RateWishes {
  run::Config config;
  bool compare = false;
  int width = 100, height = 12;
  std::string svg;
};

double rate(const run::Config& config, int64_t step) {
  return optim::learning_rate(config.optimizer, step, config.training.steps, config.training.batch_size);
}

/// Returns the curve of the learning rate. Errors: options that the schedule refuses.
report::Curve curve_of(const run::Config& config, const std::string& note) {
  optim::check_learning_rate(config.optimizer, config.training.steps, config.training.batch_size);
  report::Curve curve{config.optimizer.schedule.name, note, {}};
  for (int64_t step = 1; step <= config.training.steps; ++step) curve.values.push_back(rate(config, step));
  return curve;
}

std::string sizes_of_run(const run::Config& config) {
  const double peak = optim::peak_learning_rate(config.optimizer, config.training.batch_size);
  return concat(config.training.steps, " steps, warm-up ", config.optimizer.warmup_steps, ", peak ", peak,
                config.optimizer.learning_rate_scaling == "none"
                    ? ""
                    : concat(" (", config.optimizer.learning_rate, " for ", config.optimizer.reference_batch,
                             " samples, scaled to ", config.training.batch_size, ": ",
                             config.optimizer.learning_rate_scaling, ")"));
}

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}

void show_rates(const RateWishes& wishes) {
  const run::Config& config = wishes.config;
  const report::Curve curve = curve_of(config, sizes_of_run(config));
  std::printf("%s: %s\n\n", curve.title.c_str(), curve.note.c_str());
  print(report::draw_text(curve, wishes.width, wishes.height,
                          *std::max_element(curve.values.begin(), curve.values.end())));
  std::printf("\n%10s  %s\n", "step", "learning rate");
  const int64_t steps = config.training.steps, warmup = config.optimizer.warmup_steps;
  std::vector<int64_t> shown{1, std::max<int64_t>(1, warmup)};
  for (const int64_t eighth : {2, 4, 6, 7, 8}) shown.push_back(std::max<int64_t>(1, steps * eighth / 8));
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  for (const int64_t step : shown)
    std::printf("%10lld  %.6g\n", static_cast<long long>(step), curve.values[static_cast<size_t>(step - 1)]);
  if (!wishes.svg.empty()) write_file(wishes.svg, report::draw_svg({curve}, 1));
}

/// Plots every schedule with the keys that it uses.
void compare_rates(const RateWishes& wishes) {
  std::vector<report::Curve> curves;
  std::string left_out;
  double top = 0;
  for (const auto& [name, description] : optim::learning_rate_schedules()) {
    run::Config config = wishes.config;
    config.optimizer.schedule.name = name;
    try {
      curves.push_back(curve_of(config, description));
      top = std::max(top, *std::max_element(curves.back().values.begin(), curves.back().values.end()));
    } catch (const Error& error) {
      left_out += concat("left out: ", name, ": ", error.message(), "\n");
    }
  }
  std::printf("%s\n\n", sizes_of_run(wishes.config).c_str());
  const int width = wishes.width / kAcross;
  for (size_t first = 0; first < curves.size(); first += kAcross) {
    std::vector<std::string> rows;
    for (size_t i = first; i < std::min(curves.size(), first + kAcross); ++i) {
      std::vector<std::string> plot = report::draw_text(curves[i], width - 2, std::max(4, wishes.height / 2), top);
      plot.insert(plot.begin(),
                  concat("  ", curves[i].title, ": ", curves[i].note).substr(0, static_cast<size_t>(width - 2)));
      rows.resize(plot.size());
      for (size_t row = 0; row < plot.size(); ++row) {
        rows[row].resize((i - first) * static_cast<size_t>(width), ' ');
        rows[row] += plot[row];
      }
    }
    print(rows);
    std::printf("\n");
  }
  std::printf("%s", left_out.c_str());
  if (!wishes.svg.empty()) write_file(wishes.svg, report::draw_svg(curves, kAcross));
}

}  // namespace

int schedule_lr(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Draws the learning rate over a run: from CONFIG, from flags such as --optimizer.schedule=cosine, or for every "
      "schedule.",
      "colossal schedule-lr");
  RateWishes wishes;
  std::string path;
  app.add_option("config", path, "TOML file; default: the values that `colossal help config` lists");
  app.add_flag("--compare", wishes.compare, "draw every schedule");
  app.add_option("--width", wishes.width, "width of the drawing in columns")
      ->capture_default_str()
      ->check(CLI::Range(40, 1000));
  app.add_option("--height", wishes.height, "height of the drawing in rows")
      ->capture_default_str()
      ->check(CLI::Range(4, 200));
  app.add_option("--output", wishes.svg, "SVG file for the drawing, in addition to the terminal");
  app.allow_extras();
  parse(app, arguments);
  const run::GivenConfig given = run::read_given_config(path, config_flags(app));
  wishes.config = given.config;
  run::refuse_other_keys(wishes.config, own_table_names(program), own_data_keys(program));
  for (const std::string& notice : given.notices) std::fprintf(stderr, "colossal: %s\n", notice.c_str());
  require(wishes.config.training.steps <= kMaxSteps, "training", "steps of a picture must be at most ", kMaxSteps,
          ": got ", wishes.config.training.steps);
  wishes.compare ? compare_rates(wishes) : show_rates(wishes);
  return 0;
}

}  // namespace colossal::cli
