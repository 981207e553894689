#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/cli/commands.h"
#include "colossal/schedule/draw.h"

namespace colossal::cli {
namespace {

using schedule::Options;
using schedule::Timeline;

struct Wishes {
  Options options;
  std::vector<double> costs;
  bool compare = false;
  int width = 100;
  std::string svg, trace;
};

double most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

Timeline planned(const Options& options) { return simulate(make_schedule(options), options.costs); }

std::string sizes_of(const Options& options) {
  const auto& costs = options.costs;
  return concat(options.stages, options.stages == 1 ? " rank, " : " ranks, ", options.micro_batches,
                options.micro_batches == 1 ? " micro-batch" : " micro-batches", "; forward ", costs.forward,
                ", backward ", costs.backward_input, " + ", costs.backward_weight, ", transfer ", costs.transfer);
}

void write_pictures(const Wishes& wishes, const schedule::Titled& titled) {
  if (!wishes.svg.empty()) write_file(wishes.svg, draw_svg(titled));
  if (!wishes.trace.empty()) write_file(wishes.trace, chrome_trace(titled, 1e-3));
}

void show(const Wishes& wishes) {
  const Options& options = wishes.options;
  const Timeline timeline = planned(options);
  std::printf("%s: %s, %d %s per rank\n\n%s\n", options.name.c_str(), sizes_of(options).c_str(), timeline.chunks,
              timeline.chunks == 1 ? "chunk" : "chunks", draw_text(timeline, wishes.width).c_str());
  std::printf("makespan %.5g, bubble %.1f %% of ideal compute, %d messages\n\n", timeline.makespan,
              100 * timeline.bubble(), timeline.transfers);
  std::printf("rank      busy      idle  live activations\n");
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    std::printf("%4d  %8.5g  %8.4g  %16.5g\n", rank, timeline.busy[rank], timeline.span[rank] - timeline.busy[rank],
                timeline.peak_live[rank]);
  }
  write_pictures(wishes, {{options.name, timeline}});
}

struct Row {
  const schedule::Family* family;
  Timeline timeline;
};

/// Returns every legal schedule of these sizes, the shortest first. Writes the other schedules with their reasons to
/// `left_out`.
std::vector<Row> all_of(const Options& given, std::string& left_out) {
  std::vector<Row> rows;
  for (const auto& family : schedule::families()) {
    Options options = given;
    options.name = family.name;
    if (!family.takes_chunks) options.chunks = 0;
    try {
      rows.push_back({&family, planned(options)});
    } catch (const Error& error) {
      left_out += "left out: " + error.message() + "\n";
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return most(a.timeline.span) < most(b.timeline.span); });
  return rows;
}

void compare(const Wishes& wishes) {
  std::string left_out;
  const std::vector<Row> rows = all_of(wishes.options, left_out);
  std::printf("%s\n\n%-15s %6s  %8s  %8s  %7s  %6s  %8s  %s\n", sizes_of(wishes.options).c_str(), "schedule", "chunks",
              "time", "makespan", "bubble", "live", "messages", "description");
  schedule::Titled titled;
  for (const auto& [family, timeline] : rows) {
    std::printf("%-15s %6d  %8.5g  %8.5g  %5.1f %%  %6.4g  %8d  %s\n", family->name, timeline.chunks,
                most(timeline.span), timeline.makespan, 100 * timeline.bubble(), most(timeline.peak_live),
                timeline.transfers, family->description);
    titled.emplace_back(family->name, timeline);
  }
  std::printf(
      "\ntime: the longest time of a rank from its first operation to its last, which is the length of a training step "
      "when\nsteps follow one another. makespan: from the first operation of any rank to the last. live: maximum of "
      "activations on a\nrank at once, in units of one micro-batch on all its chunks.\n%s",
      left_out.c_str());
  write_pictures(wishes, titled);
}

}  // namespace

int schedule(const Arguments& arguments) {
  CLI::App app(
      "Draws a pipeline schedule with its bubble, live activations and messages, or compares all legal schedules.",
      "colossal schedule");
  Wishes wishes;
  Options& options = wishes.options;
  options.stages = 4;
  options.micro_batches = 8;
  const std::string names = join(schedule::families(), ", ", &schedule::Family::name);
  app.add_option("--name", options.name, "schedule, one of " + names);
  app.add_flag("--compare", wishes.compare, "print all legal schedules in one table, the shortest first");
  app.add_option("--stages", options.stages, "number of pipeline ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 128));
  app.add_option("--micro-batches", options.micro_batches, "number of micro-batches in a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--chunks", options.chunks,
                 "number of stages per rank (interleaved, hanayo); default: the schedule's own")
      ->check(CLI::Range(1, 64));
  app.add_option("--costs", wishes.costs,
                 "costs of forward, backward for the input, backward for the weights and a transfer; default: 1,1,1,0")
      ->delimiter(',')
      ->expected(3, 4);
  app.add_option("--memory-limit", options.memory_limit,
                 "maximum live activations per rank; default: the schedule's own");
  app.add_option("--width", wishes.width, "width of the drawing in columns")
      ->capture_default_str()
      ->check(CLI::Range(20, 1000));
  app.add_option("--svg", wishes.svg, "SVG file for the drawing");
  app.add_option("--trace", wishes.trace, "trace file for Perfetto; one unit of cost is drawn as 1 ms");
  parse(app, arguments);
  if (wishes.compare != options.name.empty())
    throw UsageError("colossal schedule: give either --name NAME or --compare; the names are " + names);
  if (!wishes.costs.empty()) {
    options.costs = {.forward = wishes.costs[0],
                     .backward_input = wishes.costs[1],
                     .backward_weight = wishes.costs[2],
                     .transfer = wishes.costs.size() > 3 ? wishes.costs[3] : 0};
  }
  wishes.compare ? compare(wishes) : show(wishes);
  return 0;
}

}  // namespace colossal::cli
