#include "colossal/memory/tiers/tiered_store.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>
#include <utility>

#include "colossal/memory/tiers/tiered_store_state.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::memory {

namespace {

class TieredHandle final : public OffloadedTensor {
 public:
  TieredHandle(TieredStoreState& state, const at::Tensor& tensor)
      : state_(state),
        stored_{.number = 0,
                .sizes = tensor.sizes().vec(),
                .dtype = tensor.scalar_type(),
                .bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()))} {
    const Turn turn(state_);
    state_.rethrow();
    state_.make_room(stored_.bytes, /*may_exceed=*/true);
    // Takes the lowest free number that was not freed in this step. A tensor that is stored and freed in every step
    // then has the same number each time, even if other tensors of the first step remain.
    if (state_.free_numbers.empty()) {
      stored_.number = state_.all.size();
      state_.all.push_back(&stored_);
    } else {
      stored_.number = *state_.free_numbers.begin();
      state_.free_numbers.erase(stored_.number);
      state_.all[stored_.number] = &stored_;
    }
    state_.all_bytes += stored_.bytes;
    try {
      {
        const Asked asked(state_, stored_);
        fill(tensor);
        state_.use(stored_);
      }
      if (state_.missing(0) > 0) state_.make_room(0);
    } catch (...) {
      const Asked asked(state_, stored_);
      leave_store();
      throw;
    }
    state_.read_ahead();
  }

  ~TieredHandle() override {
    const Turn turn(state_);
    const Asked asked(state_, stored_);
    leave_store();
  }

  int64_t bytes() const override { return stored_.bytes; }

  void prefetch() override {
    attempt([&] {
      // read_ahead() prefetches tensors whose next use is predicted. This covers the others, for instance in the first
      // step.
      if (!stored_.has_values || stored_.buffer.defined() || state_.until(stored_)) return;
      while (state_.missing(stored_.bytes) - state_.leaving_bytes > 0) {
        TieredTensor* leaves = state_.first_to_leave();
        if (!leaves) return;
        state_.evict(*leaves);
      }
      state_.end_what_is_over();
      if (state_.missing(stored_.bytes) > 0) return;
      state_.begin_to_read(stored_);
      ++state_.counts.reads_ahead;
    });
  }

  at::Tensor borrow() override {
    const Turn turn(state_);
    const Asked asked(state_, stored_);
    come();
    state_.finish_copy(stored_);  // the borrower may read the tensor and write to it on the host
    state_.record(TierEvent::Kind::Borrow, stored_);
    stored_.is_borrowed = true;
    state_.settle(stored_);
    state_.read_ahead();
    return stored_.values;
  }

  void copy_to(const at::Tensor& to) override {
    Turn turn(state_);
    std::optional<Asked> asked(std::in_place, state_, stored_);
    come();
    const bool is_here = !tensor::is_accelerator(to);
    if (tensor::is_for_cpu(to))
      state_.finish_copy(stored_);
    else if (!is_here)
      stored_.copy.to_device(to, stored_.values);  // the buffer is reused only after this copy
    state_.record(TierEvent::Kind::Borrow, stored_);
    stored_.is_borrowed = true;  // read_ahead() must not evict it
    asked.reset();
    state_.read_ahead();
    tensor::announce_copy_to_device(static_cast<int64_t>(to.nbytes()));
    if (is_here) {
      // Other callers need not wait for the copy.
      const tensor::HiddenOperators is_announced;
      turn.leave_for([&] { to.copy_(stored_.values); }, [&] { end_loan(); });
      return;
    }
    end_loan();
  }

  void return_borrowed(const at::Tensor&, bool changed) override {
    attempt([&] {
      stored_.is_borrowed = false;
      if (changed) stored_.has_values = true, stored_.on_disk = false;
      if (!stored_.has_values) leave_memory();
      state_.record(changed ? TierEvent::Kind::Change : TierEvent::Kind::Return, stored_);
      state_.settle(stored_);
      state_.read_ahead();
    });
  }

  void discard() override {
    const Turn turn(state_);
    const Asked asked(state_, stored_);
    stored_.is_borrowed = false;
    leave_memory();
    state_.record(TierEvent::Kind::Gone, stored_);
    stored_.has_values = stored_.on_disk = false;
    stored_.extent = {};  // frees the space on the disk for other tensors
  }

  void replace(const at::Tensor& tensor) override {
    const Turn turn(state_);
    const Asked asked(state_, stored_);
    state_.rethrow();
    if (stored_.buffer.defined())
      state_.finish(stored_);
    else
      state_.make_room(stored_.bytes);
    fill(tensor);
    state_.use(stored_);
    state_.read_ahead();
  }

 private:
  /// Ends a borrow without changes.
  void end_loan() {
    stored_.is_borrowed = false;
    state_.record(TierEvent::Kind::Return, stored_);
    state_.settle(stored_);
  }

  /// Loads the tensor into its buffer. Arbitrary values suffice if it has none.
  void come() {
    state_.rethrow();
    state_.use(stored_);
    state_.finish(stored_);
    if (stored_.buffer.defined()) return;
    state_.make_room(stored_.bytes);
    if (!stored_.has_values) return state_.give_buffer(stored_);
    state_.begin_to_read(stored_);
    state_.finish(stored_);
  }

  /// Copies `tensor` into the buffer. Requires a buffer, or room for one.
  void fill(const at::Tensor& tensor) {
    if (!stored_.buffer.defined()) state_.give_buffer(stored_);
    state_.fill(stored_, tensor);
  }

  void leave_memory() {
    try {
      state_.finish(stored_);
    } catch (...) {  // the values are no longer needed, so their errors are not either
    }
    if (stored_.buffer.defined()) state_.drop_buffer(stored_);
  }

  void leave_store() {
    stored_.is_borrowed = false;
    leave_memory();
    state_.record(TierEvent::Kind::Gone, stored_);
    state_.all[stored_.number] = nullptr;
    state_.all_bytes -= stored_.bytes;
    if (state_.in_step)
      state_.freed_numbers.push_back(stored_.number);
    else
      state_.free_numbers.insert(stored_.number);
  }

  template <class Body>
  void attempt(const Body& body) {
    const Turn turn(state_);
    try {
      body();
    } catch (...) {
      if (!state_.failure) state_.failure = std::current_exception();
    }
  }

  TieredStoreState& state_;
  TieredTensor stored_;
};

}  // namespace

TieredStore::TieredStore(Options options) : state_(std::make_unique<TieredStoreState>(std::move(options))) {}
TieredStore::~TieredStore() = default;

std::unique_ptr<OffloadedTensor> TieredStore::offload(const at::Tensor& tensor) {
  return std::make_unique<TieredHandle>(*state_, tensor);
}

void TieredStore::begin_step() {
  const Turn turn(*state_);
  state_->abandon_step();
  state_->in_step = true;
}

void TieredStore::abandon_step() {
  const Turn turn(*state_);
  state_->abandon_step();
}

void TieredStore::end_step() {
  const Turn turn(*state_);
  state_->end_step();
}

int64_t TieredStore::host_bytes() const { return state_->budget; }

const DiskSpace* TieredStore::disk() const { return state_->disk.get(); }

TieredStore::Counts TieredStore::counts() const {
  const std::lock_guard lock(state_->mutex);
  Counts counts = state_->counts;
  counts.host_bytes = state_->buffers.in_use();
  counts.peak_host_bytes = state_->buffers.peak();
  for (const TieredTensor* stored : state_->all)
    if (stored && !stored->buffer.defined() && stored->has_values)
      counts.disk_bytes +=
          c10::multiply_integers(stored->sizes) * static_cast<int64_t>(c10::elementSize(stored->dtype));
  return counts;
}

void TieredStore::begin_record() const {
  const std::lock_guard lock(state_->mutex);
  state_->events.emplace();
}

std::vector<TierEvent> TieredStore::end_record() const {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->events, std::nullopt).value_or(std::vector<TierEvent>{});
}

}  // namespace colossal::memory
