#include "colossal/memory/tiers/tiered_store.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>
#include <utility>

#include "colossal/memory/tiers/tiered_store_state.h"
#include "colossal/tensor/elsewhere.h"

namespace colossal::memory {

namespace {

class TieredHandle final : public OffloadedTensor {
 public:
  TieredHandle(TieredStoreState& state, const at::Tensor& tensor)
      : state_(state),
        tenant_{.number = 0,
                .sizes = tensor.sizes().vec(),
                .dtype = tensor.scalar_type(),
                .bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()))} {
    const Turn turn(state_);
    state_.rethrow();
    state_.make_room(tenant_.bytes, /*may_exceed=*/true);
    // Takes the lowest free number that was not freed in this step. A tensor that is stored and freed in every step
    // then has the same number each time, even if other tensors of the first step remain.
    if (state_.free_numbers.empty()) {
      tenant_.number = state_.all.size();
      state_.all.push_back(&tenant_);
    } else {
      tenant_.number = *state_.free_numbers.begin();
      state_.free_numbers.erase(tenant_.number);
      state_.all[tenant_.number] = &tenant_;
    }
    state_.all_bytes += tenant_.bytes;
    try {
      {
        const Asked asked(state_, tenant_);
        fill(tensor);
        state_.use(tenant_);
      }
      if (state_.missing(0) > 0) state_.make_room(0);
    } catch (...) {
      const Asked asked(state_, tenant_);
      leave_store();
      throw;
    }
    state_.read_ahead();
  }

  ~TieredHandle() override {
    const Turn turn(state_);
    const Asked asked(state_, tenant_);
    leave_store();
  }

  int64_t bytes() const override { return tenant_.bytes; }

  void prefetch() override {
    attempt([&] {
      // read_ahead() prefetches tensors whose next use is predicted. This covers the others, for instance in the first
      // step.
      if (!tenant_.has_values || tenant_.buffer.defined() || state_.until(tenant_)) return;
      while (state_.missing(tenant_.bytes) - state_.leaving_bytes > 0) {
        Tenant* leaves = state_.first_to_leave();
        if (!leaves) return;
        state_.evict(*leaves);
      }
      state_.end_what_is_over();
      if (state_.missing(tenant_.bytes) > 0) return;
      state_.begin_to_read(tenant_);
      ++state_.counts.reads_ahead;
    });
  }

  at::Tensor borrow() override {
    const Turn turn(state_);
    const Asked asked(state_, tenant_);
    come();
    state_.finish_copy(tenant_);  // the borrower may read the tensor and write to it on the host
    state_.record(TierEvent::Kind::Borrow, tenant_);
    tenant_.is_borrowed = true;
    state_.settle(tenant_);
    state_.read_ahead();
    return tenant_.values;
  }

  void copy_to(const at::Tensor& to) override {
    Turn turn(state_);
    std::optional<Asked> asked(std::in_place, state_, tenant_);
    come();
    const bool is_here = !tensor::is_elsewhere(to);
    if (is_here)
      state_.finish_copy(tenant_);
    else
      tenant_.copy.to_device(to, tenant_.values);  // the buffer is reused only after this copy
    state_.record(TierEvent::Kind::Borrow, tenant_);
    tenant_.is_borrowed = true;  // read_ahead() must not evict it
    asked.reset();
    state_.read_ahead();
    if (is_here) {
      // Other callers need not wait for the copy.
      turn.leave_for([&] { to.copy_(tenant_.values); }, [&] { end_loan(); });
      return;
    }
    end_loan();
  }

  void return_borrowed(const at::Tensor&, bool changed) override {
    attempt([&] {
      tenant_.is_borrowed = false;
      if (changed) tenant_.has_values = true, tenant_.on_disk = false;
      if (!tenant_.has_values) leave_memory();
      state_.record(changed ? TierEvent::Kind::Change : TierEvent::Kind::Return, tenant_);
      state_.settle(tenant_);
      state_.read_ahead();
    });
  }

  void discard() override {
    const Turn turn(state_);
    const Asked asked(state_, tenant_);
    tenant_.is_borrowed = false;
    leave_memory();
    state_.record(TierEvent::Kind::Gone, tenant_);
    tenant_.has_values = tenant_.on_disk = false;
    tenant_.extent = {};  // frees the space on the disk for other tensors
  }

  void replace(const at::Tensor& tensor) override {
    const Turn turn(state_);
    const Asked asked(state_, tenant_);
    state_.rethrow();
    if (tenant_.buffer.defined())
      state_.finish(tenant_);
    else
      state_.make_room(tenant_.bytes);
    fill(tensor);
    state_.use(tenant_);
    state_.read_ahead();
  }

 private:
  /// Ends a borrow without changes.
  void end_loan() {
    tenant_.is_borrowed = false;
    state_.record(TierEvent::Kind::Return, tenant_);
    state_.settle(tenant_);
  }

  /// Loads the tensor into its buffer. Arbitrary values suffice if it has none.
  void come() {
    state_.rethrow();
    state_.use(tenant_);
    state_.finish(tenant_);
    if (tenant_.buffer.defined()) return;
    state_.make_room(tenant_.bytes);
    if (!tenant_.has_values) return state_.give_buffer(tenant_);
    state_.begin_to_read(tenant_);
    state_.finish(tenant_);
  }

  /// Copies `tensor` into the buffer. Requires a buffer, or room for one.
  void fill(const at::Tensor& tensor) {
    if (!tenant_.buffer.defined()) state_.give_buffer(tenant_);
    state_.fill(tenant_, tensor);
  }

  void leave_memory() {
    try {
      state_.finish(tenant_);
    } catch (...) {  // the values are no longer needed, so their errors are not either
    }
    if (tenant_.buffer.defined()) state_.drop_buffer(tenant_);
  }

  void leave_store() {
    tenant_.is_borrowed = false;
    leave_memory();
    state_.record(TierEvent::Kind::Gone, tenant_);
    state_.all[tenant_.number] = nullptr;
    state_.all_bytes -= tenant_.bytes;
    if (state_.in_step)
      state_.freed_numbers.push_back(tenant_.number);
    else
      state_.free_numbers.insert(tenant_.number);
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
  Tenant tenant_;
};

}  // namespace

TieredStore::TieredStore(Options options) : state_(std::make_unique<TieredStoreState>(std::move(options))) {}
TieredStore::~TieredStore() = default;

std::unique_ptr<OffloadedTensor> TieredStore::offload(const at::Tensor& tensor) {
  return std::make_unique<TieredHandle>(*state_, tensor);
}

void TieredStore::begin_step() {
  const Turn turn(*state_);
  if (state_->in_step) state_->end_step();  // the last step ended in an error
  state_->in_step = true;
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
  for (const Tenant* tenant : state_->all)
    if (tenant && !tenant->buffer.defined() && tenant->has_values)
      counts.disk_bytes +=
          c10::multiply_integers(tenant->sizes) * static_cast<int64_t>(c10::elementSize(tenant->dtype));
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
