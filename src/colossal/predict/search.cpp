#include "colossal/predict/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "colossal/base/bytes.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/predict/layout_price.h"
#include "colossal/predict/layouts.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/shallow_step.h"
#include "colossal/predict/stage_seconds.h"
#include "colossal/predict/step.h"
#include "colossal/run/layout_keys.h"
#include "colossal/schedule/make.h"
#include "colossal/train/step_result.h"

namespace colossal::predict {
namespace {

constexpr size_t kMaxCandidates = 200000;  // kept for the choice of the next layout, which reads them all
constexpr double kHopeless = 2;            // a price so many times the best step is not looked at
constexpr double kNear = 1.05;             // the same for seconds and bytes that few blocks give, which are more exact
constexpr double kShallowShare = 0.5;      // work of few blocks, relative to all, for which they are recorded first
constexpr int kMaxSkipped = 16;            // layouts in a row that are too large to record end it, too
constexpr double kLargestRecord = 0.125;   // share of the work of a search that one layout may take
constexpr double kTie = 1e-9;              // relative: steps whose seconds differ less are equal
constexpr int kMaxFailures = 32;           // failures of a family without success, after which it comes last

/// A layout and what is known about it.
struct Candidate {
  Layout layout;
  LayoutPrice price;
  int32_t family = 0;  // layouts with the same axes, which one correction of seconds serves
  bool is_done = false;
  std::optional<ShallowStep> shallow{};
};

std::string readable(double bytes) { return readable_bytes(static_cast<int64_t>(bytes)); }

/// Keeps the candidates of a group of similar layouts that may be the best: all, or if there are too many in the space
/// the fastest, and the one with the least memory.
void keep_some(std::vector<Candidate>& group, size_t most) {
  if (group.size() <= most) return;
  const auto by_memory = [](const Candidate& a, const Candidate& b) {
    return a.price.fixed_bytes + a.price.activation_bytes < b.price.fixed_bytes + b.price.activation_bytes;
  };
  const Candidate smallest = *std::min_element(group.begin(), group.end(), by_memory);
  std::stable_sort(group.begin(), group.end(),
                   [](const Candidate& a, const Candidate& b) { return a.price.seconds < b.price.seconds; });
  group.resize(most - 1);
  group.push_back(smallest);
}

/// Returns the place of a layout's schedule among all, which are ordered from the simplest.
size_t place_of_schedule(const run::Config& config) {
  size_t place = 0;
  for (const schedule::Family& family : schedule::families()) {
    if (family.name == config.parallel.pipeline.schedule) break;
    ++place;
  }
  return place;
}

/// Returns true if two layouts differ in their schedule alone, and their steps do not differ.
bool ties(const FoundLayout& found, const run::Config& config, const plan::Prediction& prediction) {
  run::Config renamed = config;
  renamed.parallel.pipeline.schedule = found.config.parallel.pipeline.schedule;
  renamed.parallel.pipeline.chunks = found.config.parallel.pipeline.chunks;
  const double seconds = found.prediction.step_seconds;
  return found.config.parallel.pipeline.size > 1 && std::abs(prediction.step_seconds - seconds) <= kTie * seconds &&
         prediction.peak_bytes == found.prediction.peak_bytes && to_toml(renamed) == to_toml(found.config);
}

/// Returns the largest load of the experts up to which a layout fits: infinite if it fits at every load.
double fitting_load(const plan::Prediction& prediction) {
  return prediction.fits ? std::numeric_limits<double>::infinity() : prediction.rank_load.fitting;
}

/// One search.
class LayoutSearch {
 public:
  LayoutSearch(const train::ConfiguredRun& run, const plan::Cluster& cluster, const SearchOptions& options)
      : models_(run.models),
        cluster_(cluster),
        options_(options),
        space_(run, {.ranks = options.ranks > 0 ? options.ranks : run.config.parallel.ranks(),
                     .ranks_per_node = cluster.ranks_per_node(),
                     .keep = options.keep}),
        prices_(space_, run.models, cluster),
        work_left_(options.seconds * kBlocksPerSecond) {
    memory_ = static_cast<double>(cluster.device_bytes());
    if (cluster.profile().device.shared) memory_ -= static_cast<double>(cluster.profile().machine.resident);
    const int64_t budget = space_.given().memory.device;
    if (budget > 0) memory_ = std::min(memory_, static_cast<double>(budget));
  }

  SearchResult run() {
    const Stopwatch watch;
    collect();
    if (candidates_.empty()) refuse_all();
    while (watch.seconds() < options_.seconds || result_.recorded == 0) {
      const bool has_enough = options_.records > 0 && result_.recorded + result_.shallow >= options_.records;
      if (skipped_ > kMaxSkipped || (has_enough && result_.recorded > 0)) break;
      Candidate* next = choose();
      if (!next) break;
      if (!record_few_blocks(*next)) {
        next->is_done = true;
        record(*next);
      }
      if (options_.progress) options_.progress(result_.recorded + result_.shallow, best_seconds_);
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Tried {
    run::Config config;
    plan::Prediction prediction;
    double tier_seconds = 0;
    double seconds() const { return prediction.step_seconds + tier_seconds; }
  };

  void collect() {
    space_.for_each([&](const Layout&) { ++result_.tried; });
    // Layouts of a group differ in micro-batches, schedule, and what memory they save.
    const bool has_all = static_cast<size_t>(result_.tried) <= kMaxCandidates;
    std::map<std::tuple<int32_t, int32_t, int32_t, int64_t>, int32_t> families;
    std::map<std::tuple<int, int, int, bool>, std::vector<Candidate>> groups;  // of one family
    int32_t open = -1;
    const auto close = [&] {
      for (auto& [key, group] : groups) {
        if (!has_all) keep_some(group, 3);
        candidates_.insert(candidates_.end(), group.begin(), group.end());
      }
      groups.clear();
    };
    space_.for_each([&](const Layout& layout) {
      const LayoutPrice price = prices_.of(layout);
      least_bound_ = std::min(least_bound_, price.bound_bytes);
      const auto [at, is_new] =
          families.try_emplace({layout.tensor, layout.sequence, layout.expert, space_.pipeline(layout).size},
                               static_cast<int32_t>(families.size()));
      if (at->second != open) close();
      open = at->second;
      groups[{layout.zero, layout.zero_group, layout.recompute, layout.uses_tiers}].push_back(
          {.layout = layout, .price = price, .family = at->second});
    });
    close();
    ratios_.assign(families.size(), 0);
    failures_.assign(families.size(), 0);
    activation_ratios_.assign(space_.recomputes().size(), 0);
    double least = std::numeric_limits<double>::max();
    for (const Candidate& candidate : candidates_) least = std::min(least, work_of(candidate.layout));
    largest_work_ = std::max(kLargestRecord * work_left_, least);
    const std::vector<double>& blocks = space_.costs().blocks;
    has_equal_blocks_ =
        std::all_of(blocks.begin(), blocks.end(), [&](double operations) { return operations == blocks.front(); });
  }

  /// Returns the work of recording a layout. Small layouts of the same axes stand for those that are too large.
  double work_of(const Layout& layout) const {
    return recording_work(space_.pipeline(layout).size, layout.micro_batches,
                          space_.recomputes()[static_cast<size_t>(layout.recompute)] != "none",
                          static_cast<int64_t>(space_.costs().blocks.size()));
  }

  double expected_seconds(const Candidate& candidate) const {
    if (candidate.shallow) return candidate.shallow->seconds;
    const double ratio = ratios_[static_cast<size_t>(candidate.family)];
    return candidate.price.seconds * (ratio > 0 ? ratio : least_ratio_ > 0 ? least_ratio_ : 1);
  }
  double expected_bytes(const Candidate& candidate) const {
    if (candidate.shallow) return candidate.shallow->peak_bytes;
    double ratio = activation_ratios_[static_cast<size_t>(candidate.layout.recompute)];
    // Blocks that are not recomputed keep more than the bound by much the same factor, wholly or in part.
    if (ratio == 0)
      ratio = space_.recomputes()[static_cast<size_t>(candidate.layout.recompute)] == "block" ? 1 : kept_ratio_;
    return candidate.price.fixed_bytes + candidate.price.activation_bytes * ratio;
  }

  /// Doubtful: only the price exceeds the memory, which may be wrong. TooLarge: few blocks show it. Impossible: the
  /// bound proves it.
  enum Prospect { Expected, Doubtful, Failing, TooLarge, Impossible };

  Prospect prospect_of(const Candidate& candidate) const {
    const auto family = static_cast<size_t>(candidate.family);
    if (candidate.price.bound_bytes > memory_) return Impossible;
    if (failures_[family] >= kMaxFailures && ratios_[family] == 0) return Failing;
    const double bytes = expected_bytes(candidate);
    if (bytes <= memory_) return Expected;
    return candidate.shallow && bytes > kNear * memory_ ? TooLarge : Doubtful;
  }

  /// Returns true if the layout may be faster than the best that fits.
  bool is_worth_a_try(const Candidate& candidate, Prospect prospect) const {
    if (best_seconds_ == 0) return prospect != Impossible || tried_.empty();
    const double seconds = expected_seconds(candidate);
    if (prospect == Expected) return seconds <= (candidate.shallow ? kNear : kHopeless) * best_seconds_;
    return prospect == Doubtful && seconds < best_seconds_;
  }

  /// Returns the most promising layout: the fastest that is expected to fit. If there is none, the smallest, or the
  /// fastest of those whose estimate may be wrong once a layout fits. Returns null if the search is over.
  Candidate* choose() {
    Candidate* best = nullptr;
    std::pair<Prospect, double> least;
    for (Candidate& candidate : candidates_) {
      if (candidate.is_done || work_of(candidate.layout) > largest_work_) continue;
      const Prospect prospect = prospect_of(candidate);
      if (!is_worth_a_try(candidate, prospect)) continue;
      const bool by_seconds = prospect == Expected || prospect == Failing || best_seconds_ > 0;
      const std::pair rank{prospect, by_seconds ? expected_seconds(candidate) : expected_bytes(candidate)};
      if (best && !(rank < least)) continue;
      best = &candidate;
      least = rank;
    }
    return best;
  }

  /// Records a layout of a deep model with few blocks. Returns false if it was, or if that would not save work.
  bool record_few_blocks(Candidate& candidate) {
    const run::Config config = space_.config_of(candidate.layout);
    if (candidate.shallow || !has_equal_blocks_) return false;
    try {
      config.validate();
      const double work = shallow_work(config);
      if (work > kShallowShare * work_of(candidate.layout) || work > work_left_) return false;
      candidate.shallow = shallow_step({config, models_}, cluster_);
      if (!candidate.shallow) return false;
      work_left_ -= work;
    } catch (const Error&) {
      return false;  // the whole model says why
    }
    ++result_.shallow;
    learn(candidate, candidate.shallow->seconds, candidate.shallow->peak_bytes);
    return true;
  }

  /// Corrects the prices by a simulated layout.
  void learn(const Candidate& candidate, double seconds, double peak_bytes) {
    const double ratio = seconds / candidate.price.seconds;
    ratios_[static_cast<size_t>(candidate.family)] = ratio;
    least_ratio_ = least_ratio_ > 0 ? std::min(least_ratio_, ratio) : ratio;
    const double activations = peak_bytes - candidate.price.fixed_bytes;
    double& known = activation_ratios_[static_cast<size_t>(candidate.layout.recompute)];
    known = std::max(1.0, activations / std::max(1.0, candidate.price.activation_bytes));
    if (space_.recomputes()[static_cast<size_t>(candidate.layout.recompute)] != "block") kept_ratio_ = known;
  }

  /// Records and simulates a layout, with the cut by operations and, if it differs, with that by seconds.
  void record(const Candidate& candidate) {
    run::Config config = space_.config_of(candidate.layout);
    const double work = work_of(candidate.layout);
    skipped_ = work > work_left_ && !tried_.empty() ? skipped_ + 1 : 0;
    if (skipped_ > 0) return;
    work_left_ -= work;
    const bool is_cut = config.parallel.pipeline.size > 1 && config.parallel.pipeline.layers_per_stage.empty();
    try {
      config.validate();
      if (is_cut) config.parallel.pipeline.layers_per_stage = layers_by_costs(config, space_.costs());
      add(config, candidate);
    } catch (const train::RefusedStep& error) {
      if (least_budget_ == 0 || error.needed_bytes() < least_budget_) {
        least_budget_ = error.needed_bytes();
        of_least_budget_ = run::layout_table(config, space_.given());
      }
      ++failures_[static_cast<size_t>(candidate.family)];
      return;
    } catch (const Error& error) {
      refusals_.emplace(error.component(), error.message());
      ++failures_[static_cast<size_t>(candidate.family)];
      return;
    }
    if (!is_cut || work > work_left_) return;
    const plan::Prediction& found = tried_.back().prediction;
    if (found.fits && found.step_seconds > kHopeless * best_seconds_) return;
    const auto layers = layers_by_seconds(config, space_.costs(), found, memory_);
    if (!layers || *layers == config.parallel.pipeline.layers_per_stage) return;
    config.parallel.pipeline.layers_per_stage = *layers;
    work_left_ -= work;
    const size_t before = tried_.size() - 1;
    try {
      add(config, candidate);
    } catch (const Error&) {
      return;  // the cut by operations remains
    }
    const auto rank = [](const Tried& tried) { return std::pair(!tried.prediction.fits, tried.seconds()); };
    tried_.erase(tried_.begin() +
                 static_cast<std::ptrdiff_t>(rank(tried_[before]) <= rank(tried_.back()) ? before + 1 : before));
  }

  void add(const run::Config& config, const Candidate& candidate) {
    // A profile without the speed of copies gives transfers of tiers no time.
    const bool counts_tiers = cluster_.profile().host.bandwidth > 0;
    Tried tried{.config = config,
                .prediction = predict(config),
                .tier_seconds = counts_tiers ? 0 : candidate.price.tier_seconds};
    ++result_.recorded;
    const plan::Prediction& found = tried.prediction;
    learn(candidate, tried.seconds(), static_cast<double>(found.peak_bytes));
    if (found.fits && (best_seconds_ == 0 || tried.seconds() < best_seconds_)) best_seconds_ = tried.seconds();
    tried_.push_back(std::move(tried));
  }

  plan::Prediction predict(const run::Config& config) const {
    const train::ConfiguredRun run{config, models_};
    return predict_step(run, record_stages(run, cluster_), cluster_);
  }

  void finish() {
    if (tried_.empty()) refuse_all();
    std::stable_sort(tried_.begin(), tried_.end(),
                     [](const Tried& a, const Tried& b) { return a.seconds() < b.seconds(); });
    // Without a layout that fits at every load of the experts, those that bear the most uneven loads are next.
    double load = 0;
    for (const Tried& tried : tried_) load = std::max(load, fitting_load(tried.prediction));
    const auto fits = [&](const Tried& tried) { return fitting_load(tried.prediction) >= load; };
    if (load == 0) refuse_too_large();
    result_.kept = run::describe(space_.learned());
    const Reference reference = plain_data();
    for (Tried& tried : tried_) {
      if (!fits(tried)) continue;
      const auto same = std::find_if(result_.best.begin(), result_.best.end(), [&](const FoundLayout& found) {
        return ties(found, tried.config, tried.prediction);
      });
      const bool is_tie = same != result_.best.end();
      if (is_tie && place_of_schedule(same->config) <= place_of_schedule(tried.config)) continue;
      if (!is_tie && static_cast<int64_t>(result_.best.size()) >= options_.results) continue;
      FoundLayout found{.config = std::move(tried.config), .prediction = std::move(tried.prediction)};
      found.table = run::layout_table(found.config, space_.given());
      found.why = why(found, reference);
      add_models(found.prediction, {found.config, models_});
      if (is_tie)
        *same = std::move(found);
      else
        result_.best.push_back(std::move(found));
    }
  }

  /// Plain data parallelism, with which layouts are compared.
  struct Reference {
    std::optional<plan::Prediction> prediction;
    std::string refusal;  // if it is not legal
  };

  Reference plain_data() const {
    const run::Config config = space_.plain_data();
    try {
      config.validate();
      return {.prediction = predict(config), .refusal = {}};
    } catch (const Error& error) {
      return {.prediction = std::nullopt, .refusal = error.message()};
    }
  }

  std::string why(const FoundLayout& found, const Reference& reference) const {
    const std::string plain = concat("data = ", space_.ranks());
    const std::string load = found.prediction.fits ? "" : concat("; ", found.prediction.limit);
    if (!reference.prediction) return concat(plain, " alone is not legal: ", reference.refusal, load);
    const double ratio = reference.prediction->step_seconds / found.prediction.step_seconds;
    const bool is_same = run::layout_changes(found.config, space_.plain_data()).empty();
    if (is_same) return concat("this is ", plain, " alone, plain data parallelism", load);
    const std::string compared = ratio >= 0.995 && ratio < 1.005 ? "as fast as "
                                 : ratio >= 1 ? fixed_text(ratio, 1) + " times as fast as "
                                              : concat("takes ", fixed_text(1 / ratio, 1), " times as long as ");
    const std::string bytes = concat("; a rank needs ", readable_bytes(found.prediction.peak_bytes), " instead of ",
                                     readable_bytes(reference.prediction->peak_bytes), load);
    if (reference.prediction->fits) return concat(compared, plain, bytes);
    return concat(compared, plain, ", which does not fit: ", reference.prediction->limit);
  }

  /// Returns true if every legal layout was recorded in full.
  bool has_recorded_all() const {
    return static_cast<size_t>(result_.tried) == candidates_.size() &&
           std::all_of(candidates_.begin(), candidates_.end(), [](const Candidate& one) { return one.is_done; });
  }

  [[noreturn]] void refuse_too_large() const {
    const auto smallest = std::min_element(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) {
      return a.prediction.peak_bytes < b.prediction.peak_bytes;
    });
    std::string table = run::layout_table(smallest->config, space_.given());
    std::replace(table.begin(), table.end(), '\n', ' ');
    const bool is_bounded = least_bound_ > memory_, is_proven = is_bounded || has_recorded_all();
    const std::string ranks = concat(space_.ranks(), space_.ranks() == 1 ? " rank" : " ranks");
    const std::string who =
        is_proven ? concat("no layout of ", ranks, " fits: the smallest of ", result_.recorded, " needs ")
                  : concat("none of ", result_.recorded + result_.shallow, " layouts of ", ranks,
                           " that were tried fits, of ", result_.tried, " legal ones: the smallest needs ");
    const std::string proof =
        is_bounded ? concat(". Each of ", result_.tried, " legal layouts needs at least ", readable(least_bound_)) : "";
    throw Error("plan", concat(who, readable_bytes(smallest->prediction.peak_bytes), " on a rank, and there are ",
                               readable(memory_), " (", smallest->prediction.limit, "): ", table, proof,
                               "; use more ranks, shorter rows or a smaller training.batch_size, or set budgets in "
                               "[memory]",
                               is_proven ? "" : ", or keep some keys (--keep) to try others"));
  }

  /// No step within memory.device can be recorded.
  [[noreturn]] void refuse_budget() const {
    std::string table = of_least_budget_;
    std::replace(table.begin(), table.end(), '\n', ' ');
    std::string kept;
    for (const std::string& part : run::describe(space_.learned())) kept += concat("; ", part);
    throw Error("plan", concat("no layout of ", space_.ranks(), space_.ranks() == 1 ? " rank" : " ranks",
                               " was found that fits memory.device = \"", print_bytes(space_.given().memory.device),
                               "\": the smallest that works is \"", print_bytes(least_budget_), "\", with ", table,
                               "; raise memory.device, or use more ranks, shorter rows or a smaller "
                               "training.batch_size",
                               kept));
  }

  [[noreturn]] void refuse_all() const {
    if (least_budget_ > 0) refuse_budget();
    std::string reasons;
    for (const auto* list : {&space_.refusals(), &refusals_})
      for (const auto& [axis, reason] : *list) reasons += concat("\n  ", axis, ": ", reason);
    throw Error("plan", concat("no layout of ", space_.ranks(), space_.ranks() == 1 ? " rank" : " ranks",
                               " is legal for this model and batch. Why the axes were left out:",
                               reasons.empty() ? " the kept keys allow none" : reasons));
  }

  const train::RunModels& models_;
  const plan::Cluster& cluster_;
  const SearchOptions& options_;
  LayoutSpace space_;
  LayoutPrices prices_;
  double work_left_;
  double largest_work_ = 0;                                  // of a layout that is recorded
  double memory_ = 0;                                        // bytes of a rank
  double least_bound_ = std::numeric_limits<double>::max();  // bytes that every layout needs
  bool has_equal_blocks_ = false;
  std::vector<Candidate> candidates_;
  std::vector<double> ratios_;             // predicted / estimated seconds by family; 0 = not known
  std::vector<int> failures_;              // layouts of a family that cannot be recorded
  int skipped_ = 0;                        // layouts in a row whose recording would take too long
  double least_ratio_ = 0;                 // of all families, for those that are not known
  std::vector<double> activation_ratios_;  // predicted / estimated activations by recomputation; 0 = not known
  double kept_ratio_ = 1;                  // the last of these without recomputation of whole blocks
  double best_seconds_ = 0;                // of the layouts that fit; 0 = none yet
  std::vector<Tried> tried_;
  int64_t least_budget_ = 0;     // smallest memory.device of the layouts whose step was refused; 0 = none was
  std::string of_least_budget_;  // the table of that layout
  std::map<std::string, std::string> refusals_;  // by component: the first error of a recorded layout
  SearchResult result_;
};

}  // namespace

SearchResult search(const train::ConfiguredRun& run, const plan::Cluster& cluster, const SearchOptions& options) {
  return LayoutSearch(run, cluster, options).run();
}

}  // namespace colossal::predict
