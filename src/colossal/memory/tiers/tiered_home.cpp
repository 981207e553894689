#include "colossal/memory/tiers/tiered_home.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>
#include <utility>

#include "colossal/memory/tiers/tiered_home_state.h"
#include "colossal/tensor/elsewhere.h"

namespace colossal::memory {

namespace {

class TieredKept final : public Kept {
 public:
  TieredKept(TieredHomeState& home, const at::Tensor& tensor)
      : home_(home),
        tenant_{.number = 0,
                .sizes = tensor.sizes().vec(),
                .dtype = tensor.scalar_type(),
                .bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()))} {
    const Turn turn(home_);
    home_.rethrow();
    home_.make_room(tenant_.bytes, /*may_exceed=*/true);
    // Takes the lowest free number that was not freed in this step. A tensor that is stored and freed in every step
    // then has the same number each time, even if other tensors of the first step remain.
    if (home_.free_numbers.empty()) {
      tenant_.number = home_.all.size();
      home_.all.push_back(&tenant_);
    } else {
      tenant_.number = *home_.free_numbers.begin();
      home_.free_numbers.erase(tenant_.number);
      home_.all[tenant_.number] = &tenant_;
    }
    home_.all_bytes += tenant_.bytes;
    try {
      {
        const Asked asked(home_, tenant_);
        fill(tensor);
        home_.use(tenant_);
      }
      if (home_.missing(0) > 0) home_.make_room(0);
    } catch (...) {
      const Asked asked(home_, tenant_);
      leave_home();
      throw;
    }
    home_.read_ahead();
  }

  ~TieredKept() override {
    const Turn turn(home_);
    const Asked asked(home_, tenant_);
    leave_home();
  }

  int64_t bytes() const override { return tenant_.bytes; }

  void expect() override {
    attempt([&] {
      // read_ahead() prefetches tensors whose next use is predicted. This covers the others, for instance in the first
      // step.
      if (!tenant_.has_values || tenant_.buffer.defined() || home_.until(tenant_)) return;
      while (home_.missing(tenant_.bytes) - home_.leaving_bytes > 0) {
        Tenant* leaves = home_.first_to_leave();
        if (!leaves) return;
        home_.evict(*leaves);
      }
      home_.end_what_is_over();
      if (home_.missing(tenant_.bytes) > 0) return;
      home_.begin_to_read(tenant_);
      ++home_.counts.reads_ahead;
    });
  }

  at::Tensor bring() override {
    const Turn turn(home_);
    const Asked asked(home_, tenant_);
    come();
    home_.finish_copy(tenant_);  // the borrower may read the tensor and write to it on the host
    home_.record(TierEvent::Kind::Bring, tenant_);
    tenant_.is_lent = true;
    home_.settle(tenant_);
    home_.read_ahead();
    return tenant_.values;
  }

  void copy_to(const at::Tensor& to) override {
    Turn turn(home_);
    std::optional<Asked> asked(std::in_place, home_, tenant_);
    come();
    const bool is_here = !tensor::is_elsewhere(to);
    if (is_here)
      home_.finish_copy(tenant_);
    else
      tenant_.copy.to_device(to, tenant_.values);  // the buffer is reused only after this copy
    home_.record(TierEvent::Kind::Bring, tenant_);
    tenant_.is_lent = true;  // read_ahead() must not evict it
    asked.reset();
    home_.read_ahead();
    if (is_here) {
      // Other callers need not wait for the copy.
      turn.leave_for([&] { to.copy_(tenant_.values); }, [&] { end_loan(); });
      return;
    }
    end_loan();
  }

  void put(const at::Tensor&, bool changed) override {
    attempt([&] {
      tenant_.is_lent = false;
      if (changed) tenant_.has_values = true, tenant_.on_disk = false;
      if (!tenant_.has_values) leave_memory();
      home_.record(changed ? TierEvent::Kind::Change : TierEvent::Kind::Put, tenant_);
      home_.settle(tenant_);
      home_.read_ahead();
    });
  }

  void forget() override {
    const Turn turn(home_);
    const Asked asked(home_, tenant_);
    tenant_.is_lent = false;
    leave_memory();
    home_.record(TierEvent::Kind::Gone, tenant_);
    tenant_.has_values = tenant_.on_disk = false;
    tenant_.extent = {};  // frees the space on the disk for other tensors
  }

  void replace(const at::Tensor& tensor) override {
    const Turn turn(home_);
    const Asked asked(home_, tenant_);
    home_.rethrow();
    if (tenant_.buffer.defined())
      home_.finish(tenant_);
    else
      home_.make_room(tenant_.bytes);
    fill(tensor);
    home_.use(tenant_);
    home_.read_ahead();
  }

 private:
  /// Ends a borrow without changes.
  void end_loan() {
    tenant_.is_lent = false;
    home_.record(TierEvent::Kind::Put, tenant_);
    home_.settle(tenant_);
  }

  /// Loads the tensor into its buffer. Arbitrary values suffice if it has none.
  void come() {
    home_.rethrow();
    home_.use(tenant_);
    home_.finish(tenant_);
    if (tenant_.buffer.defined()) return;
    home_.make_room(tenant_.bytes);
    if (!tenant_.has_values) return home_.give_buffer(tenant_);
    home_.begin_to_read(tenant_);
    home_.finish(tenant_);
  }

  /// Copies `tensor` into the buffer. Requires a buffer, or room for one.
  void fill(const at::Tensor& tensor) {
    if (!tenant_.buffer.defined()) home_.give_buffer(tenant_);
    home_.fill(tenant_, tensor);
  }

  void leave_memory() {
    try {
      home_.finish(tenant_);
    } catch (...) {  // the values are no longer needed, so their errors are not either
    }
    if (tenant_.buffer.defined()) home_.drop_buffer(tenant_);
  }

  void leave_home() {
    tenant_.is_lent = false;
    leave_memory();
    home_.record(TierEvent::Kind::Gone, tenant_);
    home_.all[tenant_.number] = nullptr;
    home_.all_bytes -= tenant_.bytes;
    if (home_.in_step)
      home_.freed_numbers.push_back(tenant_.number);
    else
      home_.free_numbers.insert(tenant_.number);
  }

  template <class Body>
  void attempt(const Body& body) {
    const Turn turn(home_);
    try {
      body();
    } catch (...) {
      if (!home_.failure) home_.failure = std::current_exception();
    }
  }

  TieredHomeState& home_;
  Tenant tenant_;
};

}  // namespace

TieredHome::TieredHome(Options options) : state_(std::make_unique<TieredHomeState>(std::move(options))) {}
TieredHome::~TieredHome() = default;

std::unique_ptr<Kept> TieredHome::keep(const at::Tensor& tensor) {
  return std::make_unique<TieredKept>(*state_, tensor);
}

void TieredHome::begin_step() {
  const Turn turn(*state_);
  if (state_->in_step) state_->end_step();  // the last step ended in an error
  state_->in_step = true;
}

void TieredHome::end_step() {
  const Turn turn(*state_);
  state_->end_step();
}

int64_t TieredHome::host_bytes() const { return state_->budget; }

const DiskSpace* TieredHome::disk() const { return state_->disk.get(); }

TieredHome::Counts TieredHome::counts() const {
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

void TieredHome::begin_record() const {
  const std::lock_guard lock(state_->mutex);
  state_->events.emplace();
}

std::vector<TierEvent> TieredHome::end_record() const {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->events, std::nullopt).value_or(std::vector<TierEvent>{});
}

}  // namespace colossal::memory
