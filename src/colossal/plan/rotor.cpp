#include "colossal/plan/rotor.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Returns the bytes of the output of stage `i`, which are also those of its gradient.
int64_t output_of(const Chain& chain, int64_t i) {
  const auto next = static_cast<size_t>(i) + 1;
  return next < chain.stages.size() ? chain.stages[next].input : chain.output;
}

/// Memory and time of a step, as it goes.
class PaperRun {
 public:
  PaperRun(const Chain& chain, const Segments& segments) : chain_(chain) {
    hold(chain.stages.front().input + chain.output);
    forward_and_backward(0, static_cast<int64_t>(chain.stages.size()), segments);
  }
  ChainRun result() const { return {time_, peak_}; }

 private:
  void hold(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void touch(int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }

  /// Runs stages [first, last). Their input and the gradient of their output are held already; afterwards the gradient
  /// of the input is held in place of that of the output.
  void forward_and_backward(int64_t first, int64_t last, const Segments& segments) {
    int64_t next = first;
    for (const Segment& segment : segments) {
      for (; next < segment.first; ++next) keep(next);
      forward(segment);
      next = segment.last;
    }
    for (; next < last; ++next) keep(next);
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
      while (next > segment->last) backward(--next);
      again(*segment);
      next = segment->first;
    }
    while (next > first) backward(--next);
  }

  void keep(int64_t i) {
    const ChainStage& stage = chain_.stages[i];
    touch(stage.saved + stage.saved_temporary);
    hold(stage.saved);
    time_ += stage.forward;
  }

  void backward(int64_t i) {
    const ChainStage& stage = chain_.stages[i];
    touch(stage.backward_temporary);
    live_ -= stage.saved + output_of(chain_, i);
    hold(stage.input);
    time_ += stage.backward;
  }

  void forward(const Segment& segment) {
    for (int64_t i = segment.first; i < segment.last; ++i) {
      const ChainStage& stage = chain_.stages[i];
      touch((i > segment.first ? stage.input : 0) + output_of(chain_, i) + stage.forward_temporary);
      time_ += stage.forward;
    }
    const int64_t input = chain_.stages[segment.first].input;
    if (segment.is_on_host) {
      touch(input);  // an accelerator copies from a second copy
      live_ -= input;
      time_ += 2 * static_cast<double>(input) * chain_.host_time_per_byte;
    }
    hold(output_of(chain_, segment.last - 1));
  }

  void again(const Segment& segment) {
    live_ -= output_of(chain_, segment.last - 1);
    if (segment.is_on_host) hold(chain_.stages[segment.first].input);
    forward_and_backward(segment.first, segment.last, segment.parts);
  }

  const Chain& chain_;
  int64_t live_ = 0, peak_ = 0;
  double time_ = 0;
};

/// The tables of the programme. Part (i, t) is the stages from i to t, with forward and backward. Its time is a
/// function of the units that are free; the input of i and the gradient of the output of t take some of them.
class Rotor {
 public:
  Rotor(const Chain& chain, int64_t budget)
      : chain_(chain),
        count_(static_cast<int64_t>(chain.stages.size())),
        unit_(std::max<int64_t>(1, (budget + kSlots - 1) / kSlots)),
        slots_(budget / unit_),
        has_host_(chain.host_time_per_byte > 0),
        times_(static_cast<size_t>(count_ * (count_ + 1) / 2 * (slots_ + 1)), kNever),
        held_times_(has_host_ ? times_.size() : 0, kNever) {
    for (const ChainStage& stage : chain.stages)
      copy_times_.push_back(2 * static_cast<double>(stage.input) * chain.host_time_per_byte);
    for (int64_t i = count_ - 1; i >= 0; --i)
      for (int64_t t = i; t < count_; ++t) fill(i, t);
  }

  /// None = no plan fits.
  std::optional<Segments> segments() const {
    const int64_t free = slots_ - units(chain_.stages.front().input);
    if (free < 0 || part(0, count_ - 1)[free] == kNever) return {};
    Segments found;
    trace(0, count_ - 1, free, found);
    return found;
  }

 private:
  /// One way to do the stages from i to t: computes [i, j) without keeping anything, then does [j, t], then [i, j).
  struct Leaf {
    int64_t j;
    double forward;  // time of the forward passes of [i, j)
    int64_t needed;  // bytes in addition to the input of i
  };

  int64_t units(int64_t bytes) const { return (bytes + unit_ - 1) / unit_; }
  size_t place(int64_t i, int64_t t) const {
    return static_cast<size_t>((i * (2 * count_ - i + 1) / 2 + t - i) * (slots_ + 1));
  }
  double* part(int64_t i, int64_t t) { return times_.data() + place(i, t); }
  const double* part(int64_t i, int64_t t) const { return times_.data() + place(i, t); }
  /// The same for an input of i that nothing but this part holds: it is in the units too, and may go to the host.
  double* held_part(int64_t i, int64_t t) { return held_times_.data() + place(i, t); }
  const double* held_part(int64_t i, int64_t t) const { return held_times_.data() + place(i, t); }

  /// Returns the units that stage i needs free if it keeps everything, within a part that ends with t.
  int64_t needed_to_keep(int64_t i, int64_t t) const {
    const ChainStage& stage = chain_.stages[i];
    // While the gradient of the output of t counts as taken already, that of i does not.
    return units(stage.saved + std::max(output_of(chain_, t) + stage.saved_temporary,
                                        output_of(chain_, i) + stage.backward_temporary));
  }

  template <class Visit>
  void for_leaves(int64_t i, int64_t t, const Visit& visit) const {
    Leaf leaf{i, 0, 0};
    for (int64_t j = i + 1; j <= t; ++j) {
      const ChainStage& last = chain_.stages[j - 1];
      leaf.j = j;
      leaf.forward += last.forward;
      leaf.needed = std::max(leaf.needed, output_of(chain_, t) + (j - 1 > i ? last.input : 0) +
                                              output_of(chain_, j - 1) + last.forward_temporary);
      if (visit(leaf)) return;
    }
  }

  double kept_time(int64_t i, int64_t t, int64_t free) const {
    const ChainStage& stage = chain_.stages[i];
    if (free < needed_to_keep(i, t)) return kNever;
    return stage.forward + stage.backward + (i < t ? part(i + 1, t)[free - units(stage.saved)] : 0);
  }

  /// Returns the time of [j, t] after a leaf, whose output, the input of j, takes part of `free`.
  double rest_time(int64_t j, int64_t t, int64_t free) const {
    if (has_host_) return held_part(j, t)[free];
    const int64_t input = units(chain_.stages[j].input);
    return free < input ? kNever : part(j, t)[free - input];
  }

  double leaf_time(const Leaf& leaf, int64_t i, int64_t t, int64_t free) const {
    if (free < units(leaf.needed)) return kNever;
    return leaf.forward + rest_time(leaf.j, t, free) + part(i, leaf.j - 1)[free];
  }

  double host_time(const Leaf& leaf, int64_t i, int64_t t, int64_t free) const {
    const int64_t input = chain_.stages[i].input;
    const int64_t needed = input + std::max(leaf.needed, input + output_of(chain_, t) + output_of(chain_, leaf.j - 1));
    if (free < units(needed)) return kNever;
    return leaf.forward + copy_times_[i] + held_part(leaf.j, t)[free] + part(i, leaf.j - 1)[free - units(input)];
  }

  void fill(int64_t i, int64_t t) {
    double* const times = part(i, t);
    for (int64_t free = needed_to_keep(i, t); free <= slots_; ++free) times[free] = kept_time(i, t, free);
    for_leaves(i, t, [&](const Leaf& leaf) {
      const int64_t input = units(chain_.stages[leaf.j].input);
      // The loop over units is the whole cost of the programme, so it reads three plain arrays.
      const double* const rest = has_host_ ? held_part(leaf.j, t) : part(leaf.j, t);
      const double* const before = part(i, leaf.j - 1);
      const int64_t taken = has_host_ ? 0 : input;
      for (int64_t free = std::max(units(leaf.needed), input); free <= slots_; ++free)
        times[free] = std::min(times[free], leaf.forward + rest[free - taken] + before[free]);
      return false;
    });
    if (!has_host_) return;
    double* const held = held_part(i, t);
    const int64_t input = units(chain_.stages[i].input);
    for (int64_t free = input; free <= slots_; ++free) held[free] = times[free - input];
    for_leaves(i, t, [&](const Leaf& leaf) {
      for (int64_t free = input; free <= slots_; ++free) held[free] = std::min(held[free], host_time(leaf, i, t, free));
      return false;
    });
  }

  /// Appends the segments of part (i, t). The sums are those of fill(), so the chosen one is found by equality.
  void trace(int64_t i, int64_t t, int64_t free, Segments& found) const {
    while (i <= t) {
      const double time = part(i, t)[free];
      if (kept_time(i, t, free) == time) {
        free -= units(chain_.stages[i].saved);
        ++i;
        continue;
      }
      const int64_t first = i;
      for_leaves(first, t, [&](const Leaf& leaf) {
        if (leaf_time(leaf, first, t, free) != time) return false;
        found.push_back({.first = first, .last = leaf.j});
        trace(first, leaf.j - 1, free, found.back().parts);
        i = leaf.j;
        return true;
      });
      require(i > first, "plan", "a part of a chain must have the time of one of its choices: got ", time);
      if (has_host_) return trace_held(i, t, free, found);
      free -= units(chain_.stages[i].input);
    }
  }

  void trace_held(int64_t i, int64_t t, int64_t free, Segments& found) const {
    const double time = held_part(i, t)[free];
    const int64_t input = units(chain_.stages[i].input);
    if (free >= input && part(i, t)[free - input] == time) return trace(i, t, free - input, found);
    const int64_t first = i;
    for_leaves(first, t, [&](const Leaf& leaf) {
      if (host_time(leaf, first, t, free) != time) return false;
      found.push_back({.first = first, .last = leaf.j, .is_on_host = true});
      trace(first, leaf.j - 1, free - input, found.back().parts);
      i = leaf.j;
      return true;
    });
    require(i > first, "plan", "a part of a chain must have the time of one of its choices: got ", time);
    trace_held(i, t, free, found);
  }

  const Chain& chain_;
  int64_t count_, unit_, slots_;
  bool has_host_;
  std::vector<double> times_, held_times_;
  // Copies of the input of each stage. Products are rounded here, once, so that fill() and trace() add equal numbers.
  std::vector<double> copy_times_{};
};

/// Returns stages [first, last) as one.
ChainStage joined(const Chain& chain, int64_t first, int64_t last) {
  ChainStage all{.input = chain.stages[first].input};
  const int64_t output = output_of(chain, last - 1);
  int64_t forward = 0, kept = 0, backward = 0;
  for (int64_t i = first; i < last; ++i) {
    const ChainStage& stage = chain.stages[i];
    all.forward += stage.forward;
    all.backward += stage.backward;
    all.saved += stage.saved;
    forward = std::max(forward, (i > first ? stage.input : 0) + output_of(chain, i) + stage.forward_temporary);
    kept = std::max(kept, all.saved + stage.saved_temporary);
    backward = std::max(backward, all.saved + output_of(chain, i) + stage.backward_temporary);
  }
  all.forward_temporary = std::max<int64_t>(0, forward - output);
  all.saved_temporary = kept - all.saved;
  all.backward_temporary = std::max<int64_t>(0, backward - all.saved - output);
  return all;
}

int64_t depth_of(const Segments& segments) {
  int64_t depth = 0;
  for (const Segment& segment : segments) depth = std::max(depth, 1 + depth_of(segment.parts));
  return depth;
}

/// Converts groups of `size` stages into stages.
void ungroup(Segments& segments, int64_t size, int64_t stages) {
  for (Segment& segment : segments) {
    segment.first *= size;
    segment.last = std::min(segment.last * size, stages);
    ungroup(segment.parts, size, stages);
  }
}

}  // namespace

ChainRun run_chain(const Chain& chain, const Segments& segments) { return PaperRun(chain, segments).result(); }

namespace {

/// Returns the fastest plan by the programme, which does not know Chain::level.
std::optional<RecomputationPlan> plan_without_levels(const Chain& chain, int64_t budget) {
  require(!chain.stages.empty(), "plan", "a chain must have at least the stage that ends it: got none");
  const ChainRun whole = run_chain(chain, {});
  if (whole.peak <= budget) return RecomputationPlan{whole, {}};
  if (budget <= 0) return {};
  const auto blocks = static_cast<int64_t>(chain.stages.size()) - 1;  // without the loss, which stays alone
  const int64_t size = std::max<int64_t>(1, (blocks + kMaxStages - 2) / (kMaxStages - 1));
  Chain groups{.output = chain.output, .host_time_per_byte = chain.host_time_per_byte};
  for (int64_t i = 0; i < blocks; i += size) groups.stages.push_back(joined(chain, i, std::min(i + size, blocks)));
  groups.stages.push_back(chain.stages.back());
  std::optional<Segments> segments = Rotor(groups, budget).segments();
  if (!segments || depth_of(*segments) > kMaxDepth) return {};
  ungroup(*segments, size, blocks);
  return RecomputationPlan{run_chain(chain, *segments), std::move(*segments)};
}

}  // namespace

std::optional<RecomputationPlan> plan_recomputation(const Chain& chain, int64_t budget) {
  constexpr int kMaxTries = 16;
  int64_t limit = budget;
  for (int i = 0; i < kMaxTries; ++i) {
    std::optional<RecomputationPlan> found = plan_without_levels(chain, limit);
    if (!found) return {};
    found->peak += chain.level * std::max<int64_t>(0, depth_of(found->segments) - 1);
    if (found->peak <= budget) return found;
    limit -= std::max<int64_t>(1, found->peak - budget);
  }
  return {};
}

int64_t smallest_budget(const Chain& chain) {
  int64_t fits = run_chain(chain, {}).peak, fails = 0;
  while (fits - fails > std::max<int64_t>(1, fits / 100)) {
    const int64_t middle = fails + (fits - fails) / 2;
    (plan_recomputation(chain, middle) ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace colossal::plan
