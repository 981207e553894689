#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/machine.h"
#include "colossal/cli/become.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/limited_process.h"
#include "colossal/cli/bench/memory_try.h"
#include "colossal/cli/bench/table.h"
#include "colossal/report/draw_tiers.h"
#include "colossal/run/config.h"

namespace colossal::cli {
namespace {

/// Defaults, which flags override. They use little memory in addition to the model data: one row of text is enough.
const Arguments kBenchDefaults{"--model.name=gpt2-small", "--run.device=cpu",         "--data.sequence=128",
                               "--training.batch_size=1", "--memory.recompute=block", "--optimizer.warmup_steps=0"};

struct MemoryBench {
  Arguments words;  // unparsed arguments, for the tries
  run::Config config;
  Growth growth = Growth::Layers;
  int64_t limit = 0, steps = 3, max_tries = 40;
  double seconds = 3600, resolution = 0.05;
};

/// Removes the program name that the child puts before its errors, because this program adds it again.
std::string said_by_program(const std::string& line) {
  const std::string name = "colossal: ";
  return line.rfind(name, 0) == 0 ? line.substr(name.size()) : line;
}

/// Ends the search early.
struct OutOfPatience {};

/// Tries of one kind, with or without [memory].
class Tries {
 public:
  Tries(const MemoryBench& bench, Arguments more) : bench_(bench), more_(std::move(more)), table_(columns()) {}

  bool works(int64_t size) {
    const double left = bench_.seconds - watch_.seconds();
    if (count_++ == bench_.max_tries || left <= 0) throw OutOfPatience{};
    const LimitedRun run = carry_out(size, {}, left);
    if (run.status != 0) {
      why_not_ = said_by_program(run.why_not());
      if (run.took_too_long) throw OutOfPatience{};
      std::printf("%6lld  %s\n", static_cast<long long>(size), why_not_.c_str());
      std::fflush(stdout);
      return false;
    }
    const MemoryTry measured = memory_try_of(run.output);
    print(size, measured);
    if (!best_ || measured.parameters > best_->parameters) best_ = measured, best_size_ = size;
    return true;
  }

  /// Repeats a try that worked.
  MemoryTry again(int64_t size, const Arguments& more) const {
    const LimitedRun run = carry_out(size, more, bench_.seconds);
    require(run.status == 0, "bench", "a trial that succeeded failed when repeated: ", said_by_program(run.why_not()));
    return memory_try_of(run.output);
  }

  /// Returns the largest size that works within the limits of time and tries; none = no size works, with the reason of
  /// the first.
  std::optional<MemoryTry> search(int64_t first) {
    table_.print_head();
    try {
      largest_that_works(first, bench_.resolution, [this](int64_t size) { return works(size); });
    } catch (const OutOfPatience&) {
      std::printf("       the search ended at the limit of --tries or --seconds\n");
    }
    return best_;
  }

  int64_t best_size() const { return best_size_; }
  const std::string& why_not() const { return why_not_; }

 private:
  LimitedRun carry_out(int64_t size, const Arguments& more, double seconds) const {
    Arguments command{this_program(), "bench", "memory"};
    for (const Arguments& words : {bench_.words, more_, more, {concat("--try=", size)}})
      command.insert(command.end(), words.begin(), words.end());
    return run_limited(command, bench_.limit, seconds);
  }

  bool has_device() const { return bench_.config.memory.device > 0; }

  std::vector<BenchColumn> columns() const {
    std::vector<BenchColumn> all{{bench_.growth == Growth::Layers ? "layers" : "heads", 6},
                                 {"parameters", 13},
                                 {"s/step", 8, 3},
                                 {"resident", 10}};
    if (has_device()) all.insert(all.end(), {{"device", 10}, {"copied", 10}});
    all.insert(all.end(), {{"host", 10},
                           {"disk", 10},
                           {"read", 10},
                           {"written", 10},
                           {"evictions", 9},
                           {"optimum", 9, 1},
                           {"opt. read", 10}});
    return all;
  }

  void print(int64_t size, const MemoryTry& t) const {
    BenchRow row{size, t.parameters, t.seconds, readable_bytes(t.resident_bytes)};
    std::vector<int64_t> moved{t.host_bytes, t.disk_bytes, t.bytes_read, t.bytes_written};
    if (has_device()) moved.insert(moved.begin(), {t.device_bytes, t.bytes_copied});
    for (const int64_t bytes : moved) row.emplace_back(readable_bytes(bytes));
    row.insert(row.end(), {t.evictions, t.optimal_evictions, readable_bytes(t.optimal_bytes_read)});
    table_.print_row(row);
  }

  const MemoryBench& bench_;
  const Arguments more_;
  const BenchTable table_;
  const Stopwatch watch_;
  int64_t count_ = 0, best_size_ = 0;
  std::optional<MemoryTry> best_;
  std::string why_not_;
};

/// Returns when each tensor of a try was in host memory.
report::TierTimeline timeline_of(const std::string& name, const MemoryTry& t) {
  using Kind = memory::TierEvent::Kind;
  report::TierTimeline timeline{concat(name, ": ", readable_bytes(t.bytes_read), " read, ",
                                       readable_bytes(t.bytes_written), " written in a step"),
                                0,
                                {},
                                {}};
  std::map<size_t, report::TierStay> here;
  const auto arrive = [&](size_t tensor, size_t begin, bool was_read) {
    here.emplace(tensor, report::TierStay{.tensor = tensor, .begin = begin, .end = 0, .was_read = was_read});
  };
  for (const memory::TierEvent& event : t.events) {
    const size_t now = timeline.uses;
    switch (event.kind) {
      case Kind::Read:
        arrive(event.number, now, true);
        break;
      case Kind::Set:
      case Kind::Borrow:
        // A tensor without an event of arrival was there from the beginning.
        arrive(event.number, event.kind == Kind::Set ? now : 0, false);
        timeline.used.push_back({event.number, timeline.uses++});
        break;
      case Kind::Write:
        arrive(event.number, 0, false);
        here.at(event.number).was_written = true;
        break;
      case Kind::Leave: {
        arrive(event.number, 0, false);
        report::TierStay stay = here.at(event.number);
        stay.end = now;
        timeline.stays.push_back(stay);
        here.erase(event.number);
        break;
      }
      default:
        break;
    }
  }
  for (auto& [tensor, stay] : here) {
    stay.end = timeline.uses;
    timeline.stays.push_back(stay);
  }
  return timeline;
}

void draw(const std::string& path, const Tries& tries) {
  std::vector<report::TierTimeline> timelines;
  for (const std::string placement : {"auto", "lru"})
    timelines.push_back(
        timeline_of(placement, tries.again(tries.best_size(), {"--events", "--memory.placement=" + placement})));
  write_file(path, report::draw_tiers(timelines));
}

run::Config config_of_bench(const Arguments& flags) {
  Arguments all = kBenchDefaults;
  all.insert(all.end(), flags.begin(), flags.end());
  return run::read_given_config("", all).config;
}

int search_and_print(const MemoryBench& bench, int64_t first, bool has_baseline, const std::string& picture) {
  std::printf(
      "The largest GPT that trains %lld steps in at most %s of resident memory, in %s with %s; values are those of "
      "each trial's last step.\nDevice: peak memory on it; copied: to and from it. Host, disk: storage of parameters, "
      "gradients and states outside the device.\nOptimum: evictions, and bytes read, of a policy that knows the "
      "future.\n\n",
      static_cast<long long>(bench.steps), readable_bytes(bench.limit).c_str(), bench.config.precision.mode.c_str(),
      bench.config.optimizer.name.c_str());
  Tries tiered(bench, {});
  const auto best = tiered.search(first);
  if (!best) throw Error("bench", concat("not even the smallest model trains: ", tiered.why_not()));
  std::printf("\nlargest: %lld parameters\n", static_cast<long long>(best->parameters));
  if (has_baseline) {
    std::printf("\nwithout [memory]:\n");
    Tries plain(bench, {"--in-memory"});
    const auto other = plain.search(first);
    if (other)
      std::printf("\nlargest without [memory]: %lld parameters, %.2f times as many with it\n",
                  static_cast<long long>(other->parameters),
                  static_cast<double>(best->parameters) / static_cast<double>(other->parameters));
    else
      std::printf("\nwithout [memory] not even the smallest model trains\n");
  }
  if (!picture.empty()) draw(picture, tiered);
  return 0;
}

}  // namespace

int bench_memory(const Arguments& arguments) {
  CLI::App app(
      "Finds the largest GPT that trains within the budgets of [memory], and shows the traffic between its tiers. Any "
      "key of a config is a flag: --memory.host=2GiB --memory.disk=scratch/ --model.hidden=1024 --precision.mode=bf16.",
      "colossal bench memory");
  MemoryBench bench{.words = arguments};
  std::string limit, growth = "layers", picture;
  int64_t first = 1, size = 0;
  bool baseline = false, in_memory = false, events = false;
  app.add_option("--grow", growth, "dimension that grows: layers, or heads of 64 features (with --model.layers fixed)")
      ->capture_default_str()
      ->check(CLI::IsMember({"layers", "heads"}));
  app.add_option("--from", first, "size of the first model to try")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--limit", limit, "resident memory of the process, such as \"2GiB\"; default: 90 % of the machine's");
  app.add_option("--steps", bench.steps, "training steps per trial")->capture_default_str()->check(CLI::Range(2, 1000));
  app.add_option("--tries", bench.max_tries, "maximum number of trials")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", bench.seconds, "time limit of the search; with --baseline, of each of the two searches")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e7));
  app.add_option("--resolution", bench.resolution, "relative size difference at which the search stops")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--baseline", baseline, "also find the largest model without [memory], under the same limit");
  app.add_option("--draw", picture,
                 "SVG file for a drawing of the largest model's step, placement auto compared with lru");
  for (auto* hidden : {app.add_option("--try", size, "one trial, in this process"),
                       static_cast<CLI::Option*>(app.add_flag("--in-memory", in_memory, "a trial without [memory]")),
                       static_cast<CLI::Option*>(app.add_flag("--events", events, "a trial that reports transfers"))})
    hidden->group("");
  app.allow_extras();
  parse(app, arguments);
  bench.config = config_of_bench(config_flags(app));
  bench.growth = growth == "layers" ? Growth::Layers : Growth::Heads;
  if (size > 0) {
    run::Config config = grown(bench.config, bench.growth, size);
    if (in_memory) config.memory = {.recompute = config.memory.recompute};
    std::printf("%s\n", to_json(measured_try(config, bench.steps, events)).c_str());
    return 0;
  }
  const Machine machine = describe_machine();
  bench.limit = limit.empty() ? machine.memory_total / 10 * 9 : parse_bytes(limit).value_or(0);
  if (bench.limit <= 0) throw UsageError(concat("--limit must be a size such as \"2GiB\": got ", limit));
  bench.config.validate();
  if (bench.config.parallel.ranks() != 1)
    throw UsageError(concat("bench memory needs a layout of one rank: got ", bench.config.parallel.ranks(), " ranks"));
  if (!bench.config.memory.has_tiers())
    throw UsageError("bench memory needs budgets, such as --memory.host=2GiB --memory.disk=scratch/");
  return search_and_print(bench, first, baseline, picture);
}

}  // namespace colossal::cli
