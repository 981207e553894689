#include "colossal/memory/device_trace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace colossal::memory {
namespace {

/// Returns the maximum of each number over the ranks of a group.
std::vector<int64_t> largest(std::vector<int64_t> numbers, comm::Group& ranks) {
  at::Tensor all = at::tensor(numbers, at::kLong);
  ranks.all_reduce(all, comm::Reduce::Max).wait();
  const auto* begin = all.const_data_ptr<int64_t>();
  return {begin, begin + all.numel()};
}

}  // namespace

DeviceTrace::DeviceTrace(std::unique_ptr<DeviceMeter> meter) : meter_(std::move(meter)) {}

bool DeviceTrace::raise(Moment& known, const Moment& measured) {
  const bool is_more =
      measured.others > known.others || measured.in_use > known.in_use || measured.change > known.change;
  known = {std::max(known.others, measured.others), std::max(known.in_use, measured.in_use),
           std::max(known.change, measured.change)};
  return is_more;
}

void DeviceTrace::begin_step() {
  resident_ = peak_ = peak_model_ = *on_device_;
  measured_.clear();
  rest_before_ = rest_;
  had_news_ = has_news_;
  meter_->begin(resident_);
  in_step_ = in_passes_ = true;
  is_changing_ = false;
  open_ = Open{.is_of_pass = false, .moment = {}, .gathered = 0, .on_device = resident_};
}

void DeviceTrace::end_step() {
  end_moment();
  meter_->end();
  in_step_ = in_passes_ = false;
}

void DeviceTrace::abandon_step() {
  if (!in_step_) return;
  open_.reset();
  measured_.clear();
  rest_ = rest_before_;
  has_news_ = had_news_;
  meter_->end();
  in_step_ = in_passes_ = false;
}

void DeviceTrace::end_moment() {
  if (!open_) return;
  const Open ended = *std::exchange(open_, std::nullopt);
  const int64_t peak = meter_->peak();
  peak_ = std::max(peak_, resident_ + peak);
  // Model data on the device grow during a moment, as gradients do, or shrink, as in the update: the larger size
  // counts.
  const int64_t model = std::max<int64_t>(*on_device_, ended.on_device) - resident_ + ended.gathered;
  peak_model_ = std::max(peak_model_, resident_ + model);
  const Moment moment{std::max(ended.moment.change, peak - model), ended.moment.in_use, ended.moment.change};
  if (ended.is_of_pass)
    measured_.push_back(moment);
  else if (raise(rest_, moment))
    has_news_ = true;
}

void DeviceTrace::begin_change() {
  if (!in_step_) return;
  is_changing_ = true;
  meter_->restart();
}

void DeviceTrace::begin_moment(const Timeline& timeline, int64_t gathered, int64_t in_use) {
  if (!in_step_) return;
  int64_t change = 0;
  if (std::exchange(is_changing_, false)) {
    const int64_t peak = meter_->peak();
    peak_ = std::max(peak_, resident_ + peak);
    change = std::max<int64_t>(0, peak - (*on_device_ - resident_ + gathered));
  }
  meter_->restart();
  open_ = Open{.is_of_pass = timeline.position() > 0,
               .moment = {0, in_use, change},
               .gathered = gathered,
               .on_device = *on_device_};
}

void DeviceTrace::end_pass(const Timeline& timeline) {
  end_moment();
  const std::vector<Moment> measured = std::exchange(measured_, {});
  if (measured.empty()) return;
  if (timeline.orders() != order_) {
    order_ = timeline.orders();
    for (const Moment& moment : known_) {  // an earlier order may return, so its needs still count
      worst_ = std::max(worst_, moment.others);
      min_before_ = std::max(min_before_, moment.others + moment.in_use);
    }
    known_ = measured;
    agreed_.clear();
    has_news_ = true;
    return;
  }
  for (size_t i = 0; i < std::min(measured.size(), known_.size()); ++i)
    if (raise(known_[i], measured[i])) has_news_ = true;
}

std::optional<int64_t> DeviceTrace::others(const Timeline& timeline) const {
  if (!has_agreed_) return {};
  const size_t position = timeline.position();
  if (position == 0) return agreed_rest_;
  return is_agreed(timeline) ? agreed_[position - 1].others : worst_;
}

std::optional<int64_t> DeviceTrace::next_change(const Timeline& timeline) const {
  if (!has_agreed_) return {};
  return is_agreed(timeline) ? agreed_[timeline.position() % agreed_.size()].change : worst_;
}

bool DeviceTrace::is_agreed(const Timeline& timeline) const {
  return timeline.follows() && timeline.orders() == order_ && timeline.position() <= agreed_.size() && !agreed_.empty();
}

std::vector<int64_t> DeviceTrace::packed() const {
  std::vector<int64_t> numbers{rest_.others, rest_.in_use, rest_.change};
  for (const Moment& moment : known_) numbers.insert(numbers.end(), {moment.others, moment.in_use, moment.change});
  return numbers;
}

bool DeviceTrace::agree(comm::Mesh& mesh) {
  if (largest({has_news_ ? 1 : 0}, mesh.all())[0] == 0) return false;
  has_news_ = false;
  comm::Group& mates = mesh.all_but("pipeline");
  const std::vector<int64_t> own = packed();
  const auto size = static_cast<int64_t>(own.size());
  for (const Moment& moment : known_) worst_ = std::max(worst_, moment.others);
  const std::vector<int64_t> outline = largest({size, -size, worst_}, mates);
  worst_ = outline[2];
  agreed_.clear();
  if (outline[0] == -outline[1]) {  // otherwise the ranks' passes differ, and single moments cannot be predicted
    const std::vector<int64_t> all = largest(own, mates);
    rest_ = {all[0], all[1], all[2]};
    for (size_t i = 0; i < known_.size(); ++i) known_[i] = {all[3 * i + 3], all[3 * i + 4], all[3 * i + 5]};
    agreed_ = known_;
    agreed_rest_ = rest_.others;
    has_agreed_ = true;
  }
  int64_t min_bytes = std::max(min_before_, rest_.others + rest_.in_use);
  for (const Moment& moment : known_) min_bytes = std::max(min_bytes, moment.others + moment.in_use);
  min_bytes_ = largest({min_bytes}, mesh.all())[0];
  return true;
}

namespace {

bool is_in(const std::vector<size_t>& chunks, size_t chunk) {
  return std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
}

int64_t bytes_of(const std::vector<size_t>& chunks, const Situation& now) {
  return std::accumulate(chunks.begin(), chunks.end(), int64_t{0},
                         [&](int64_t sum, size_t chunk) { return sum + now.bytes[chunk]; });
}

}  // namespace

int64_t GatherWithinDevice::room_beside(std::optional<int64_t> others) const {
  if (!others) return 0;
  return static_cast<int64_t>(kSteadyShare * static_cast<double>(capacity_)) - *others - trace_->reserved();
}

ChunkMoves GatherWithinDevice::before_use(const Situation& now) {
  trace_->end_moment();
  const int64_t room = room_beside(trace_->others(now.timeline)),
                room_ahead = room_beside(trace_->next_change(now.timeline));
  std::vector<size_t> whole = now.in_use;  // chunks that must be gathered
  if (!is_in(whole, *now.timeline.current())) whole.push_back(*now.timeline.current());
  ChunkMoves moves;
  const auto next = now.timeline.next();
  if (next && !is_in(whole, *next) && bytes_of(whole, now) + now.bytes[*next] <= std::min(room, room_ahead)) {
    whole.push_back(*next);
    moves.gather.push_back(*next);
  }
  std::vector<size_t> candidates;
  for (const size_t chunk : now.gathered)
    if (!is_in(whole, chunk)) candidates.push_back(chunk);
  const int64_t excess = bytes_of(whole, now) + bytes_of(candidates, now) - room;
  moves.release = chunks_to_release(now, std::move(candidates), excess, order_);
  return moves;
}

std::vector<size_t> GatherWithinDevice::after_pass(const Situation& now) {
  trace_->end_pass(now.timeline);
  if (!trace_->is_in_passes()) return now.gathered;
  return chunks_to_release(now, now.gathered, bytes_of(now.gathered, now) - room_beside(trace_->others(now.timeline)),
                           order_);
}

void GatherWithinDevice::settled(const Situation& now) {
  trace_->begin_moment(now.timeline, bytes_of(now.gathered, now), bytes_of(now.in_use, now));
}

}  // namespace colossal::memory
