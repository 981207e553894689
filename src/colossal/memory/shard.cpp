#include "colossal/memory/shard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"

namespace colossal::memory {

namespace {

/// Elements that adopt() handles at once: what it needs in addition stays in the cache of a processor.
constexpr int64_t kPieceOnHost = 1 << 16, kPiece = 1 << 22;

/// Sets `values` to `copy` where that is neither their rounding nor `shown` (undefined = none). Returns true if that
/// changed an element, or if `shown` is undefined.
bool adopt(const at::Tensor& values, const at::Tensor& copy, const at::Tensor& shown) {
  const at::NoGradGuard no_grad;
  const int64_t piece = values.is_cpu() ? kPieceOnHost : kPiece;
  at::Tensor any = at::zeros({}, values.options().dtype(at::kBool));
  for (int64_t first = 0; first < values.numel(); first += piece) {
    const int64_t length = std::min(piece, values.numel() - first);
    const at::Tensor own = values.narrow(0, first, length), written = copy.narrow(0, first, length);
    const at::Tensor rounded = own.to(copy.scalar_type());
    const bool is_same =
        own.is_cpu() && std::memcmp(rounded.const_data_ptr(), written.const_data_ptr(), written.nbytes()) == 0;
    if (is_same) continue;
    at::Tensor changed = written.ne(rounded);
    if (shown.defined()) any.logical_or_(changed.logical_and_(written.ne(shown.narrow(0, first, length))).any());
    own.copy_(at::where(changed, written.to(own.scalar_type()), own));
  }
  return !shown.defined() || any.is_meta() || any.item<bool>();
}

}  // namespace

struct ShardTensors {
  /// A tensor of the shard, and its state in the current lease.
  struct LeasedTensor {
    std::shared_ptr<OffloadedTensor> offloaded{};  // null: there is neither a tensor nor reserved space
    bool has_values = true;                        // false: `offloaded` is space reserved for a later tensor
    int64_t numel = 0;                             // elements of the last tensor that was stored, if known
    at::ScalarType dtype = at::ScalarType::Undefined;
    Access access = Access::None;  // access of the current lease
    at::Tensor borrowed{};         // the tensor that the lease borrowed
    bool is_there() const { return offloaded && has_values; }
  };
  std::shared_ptr<OffloadStore> offload;
  LeasedTensor values, gradients, copy, directions;
  std::vector<LeasedTensor> states;
  std::vector<Piece> pieces, stored_pieces;
  at::TensorOptions options;  // OffloadStore::borrow_device() maps this device to the device of borrowed tensors
  int64_t length = 0;
  bool copy_is_dropped = false, copy_is_written = false;
  bool drops_gradients = false;  // discards the gradients after an update
  bool is_updated = false;       // the lease writes values and holds their gradients or directions
  std::weak_ptr<Resident> lease;
  // True from the start of a lease until its tensors are returned, because the next lease must not start before that.
  bool is_leased = false;
  std::exception_ptr failure;  // error of a lease that ended
  mutable std::mutex mutex;
  std::condition_variable returned;

  /// Returns the lease that is held, or null. Waits for a lease that is ending. `lock` is a lock of `mutex`.
  Lease current(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (Lease held = lease.lock()) return held;
      if (!is_leased) return nullptr;
      returned.wait(lock);
    }
  }

  /// Calls body(leased, requested access, the tensor's member in `lease` or an undefined tensor) for all tensors.
  template <class Body>
  void for_each_tensor(const Needs& needs, Resident* lease, const Body& body) {
    at::Tensor none;
    body(values, needs.values, lease ? lease->values : none);
    body(gradients, needs.gradients, lease ? lease->gradients : none);
    body(copy, std::max(needs.copy, needs.values == Access::Write ? Access::Write : Access::None),
         lease ? lease->copy : none);
    for (size_t i = needs.places.first; i < std::min(states.size(), needs.places.end); ++i)
      body(states[i], needs.states, lease ? lease->states[i] : none);
    body(directions, needs.directions, lease ? lease->directions : none);
  }

  static void borrow(LeasedTensor& leased, Access access, at::Tensor& to) {
    if (access == Access::None) return;
    if (leased.access == Access::None && leased.is_there()) to = leased.borrowed = leased.offloaded->borrow();
    leased.access = std::max(leased.access, access);
  }

  void return_borrowed(LeasedTensor& leased, const at::Tensor& from) {
    const Access access = std::exchange(leased.access, Access::None);
    const at::Tensor borrowed = std::exchange(leased.borrowed, {});
    if (access == Access::None) return;
    if (access == Access::Read || from.is_same(borrowed)) {
      if (leased.is_there()) leased.offloaded->return_borrowed(borrowed, access == Access::Write);
      return;
    }
    const at::Tensor own = borrowed.defined() && from.defined() && from.is_alias_of(borrowed) ? from.clone() : from;
    if (borrowed.defined()) {
      leased.offloaded->return_borrowed(borrowed, false);
      leased.numel = borrowed.numel(), leased.dtype = borrowed.scalar_type();
    }
    if (!own.defined()) return drop(leased);
    store(leased, own);
  }

  /// Stores `own` as the tensor of `leased`, which no lease may hold. Never throws.
  void store(LeasedTensor& leased, const at::Tensor& own) {
    try {
      const bool fits = leased.offloaded && leased.numel == own.numel() && leased.dtype == own.scalar_type();
      if (fits)
        leased.offloaded->replace(own);
      else
        leased.offloaded = offload->offload(own);
    } catch (...) {  // ending a lease cannot throw: the tensor stays in memory, and the next lease throws
      failure = std::current_exception();
      leased.offloaded = InPlace().offload(own);
    }
    leased.numel = own.numel(), leased.dtype = own.scalar_type();
    leased.has_values = true;
  }

  /// Sets the copy of `lease` to the values, because a discarded copy has arbitrary values. This is needed also if the
  /// lease is about to write the values, because a caller may write only a part of them.
  void fill_copy(Resident& lease) {
    const at::NoGradGuard no_grad;
    lease.copy.copy_(lease.values);
    copy_is_dropped = false;
  }

  bool directions_are_gradients() const { return gradients.dtype == options.dtype().toScalarType(); }

  void make_place_for_directions() {
    if (directions.offloaded) return;
    directions.offloaded =
        offload->offload(at::empty({length}, options.device(offload->borrow_device(options.device()))));
    directions.offloaded->discard();
    directions.has_values = false;
  }

  /// Gives `lease` directions of zeros: it is the first lease of a step that requests them.
  void begin_directions(Resident& lease) {
    make_place_for_directions();
    lease.directions = directions.borrowed = directions.offloaded->borrow();
    directions.has_values = true, directions.access = Access::Write;
    lease.directions.zero_();
  }

  /// Ends an update that wrote the values: discards the directions, and the gradients if `drops_gradients` is set.
  void end_update() {
    if (directions.access != Access::None) {
      directions.access = Access::None;
      drop(directions);
    }
    if (!std::exchange(drops_gradients, false)) return;
    gradients.access = Access::None;
    drop(gradients);
  }

  static void drop(LeasedTensor& leased) {
    if (leased.is_there()) leased.offloaded->discard();
    leased.has_values = false;
    leased.borrowed.reset();
  }
};

Resident::Resident(std::shared_ptr<ShardTensors> shard)
    : states(shard->states.size()), pieces(shard->pieces), shard_(std::move(shard)) {}

Resident::~Resident() {
  const std::lock_guard lock(shard_->mutex);
  if (shard_->values.access == Access::Write) shard_->options = values.options();
  if (std::exchange(shard_->is_updated, false)) shard_->end_update();
  shard_->for_each_tensor(Needs::all(), this,
                          [this](ShardTensors::LeasedTensor& leased, Access, const at::Tensor& from) {
                            shard_->return_borrowed(leased, from);
                          });
  shard_->is_leased = false;
  shard_->returned.notify_all();
}

Shard::Parts Shard::Parts::of(const at::Tensor& values, std::shared_ptr<OffloadStore> offload) {
  std::shared_ptr<OffloadedTensor> offloaded = offload ? offload->offload(values) : InPlace().offload(values);
  return {.values = std::move(offloaded),
          .options = values.options(),
          .length = values.numel(),
          .offload = std::move(offload)};
}

Shard::Shard(Parts parts, std::vector<Piece> stored, std::optional<std::vector<Piece>> trained)
    : tensors_(std::make_shared<ShardTensors>()) {
  tensors_->offload = parts.offload ? std::move(parts.offload) : std::make_shared<InPlace>();
  tensors_->options = parts.options;
  tensors_->length = parts.length;
  tensors_->values.offloaded = std::move(parts.values);
  tensors_->copy.offloaded = std::move(parts.copy);
  tensors_->pieces = trained ? std::move(*trained) : stored;
  tensors_->stored_pieces = std::move(stored);
}

const std::vector<Piece>& Shard::pieces() const { return tensors_->pieces; }
const std::vector<Piece>& Shard::stored_pieces() const { return tensors_->stored_pieces; }
int64_t Shard::length() const { return tensors_->length; }
int64_t Shard::bytes() const {
  const std::lock_guard lock(tensors_->mutex);
  int64_t bytes = 0;
  const auto add = [&](const ShardTensors::LeasedTensor& leased, Access, const at::Tensor&) {
    if (leased.offloaded && &leased != &tensors_->gradients && &leased != &tensors_->directions)
      bytes += leased.offloaded->bytes();
  };
  tensors_->for_each_tensor(Needs::all(), nullptr, add);
  return bytes;
}
at::TensorOptions Shard::options() const {
  const std::lock_guard lock(tensors_->mutex);
  return tensors_->options.device(tensors_->offload->borrow_device(tensors_->options.device()));
}

size_t Shard::add_state(const at::Tensor& initial) const {
  Lease held;  // declared before the lock: the end of a lease needs the mutex
  std::unique_lock lock(tensors_->mutex);
  held = tensors_->current(lock);
  require(!held, "shard", "a state cannot be added while a lease is held");
  tensors_->states.push_back({tensors_->offload->offload(initial)});
  return tensors_->states.size() - 1;
}

void Shard::make_place_for_directions() const {
  const std::lock_guard lock(tensors_->mutex);
  tensors_->make_place_for_directions();
}

void Shard::set_whole_gradients(const at::Tensor& gradients) const {
  drop_gradients();
  const std::lock_guard lock(tensors_->mutex);
  const at::Device there = gradients.device(), borrow_device = tensors_->offload->borrow_device(there);
  std::shared_ptr<OffloadedTensor> offloaded = InPlace().offload(gradients);
  tensors_->gradients = {
      .offloaded = borrow_device == there ? std::move(offloaded) : copied_to(borrow_device, std::move(offloaded)),
      .numel = gradients.numel(),
      .dtype = gradients.scalar_type()};
}

void Shard::add_gradients(const at::Tensor& more, at::ScalarType sums) const {
  Lease held;  // declared before the lock: the end of a lease needs the mutex
  std::unique_lock lock(tensors_->mutex);
  held = tensors_->current(lock);
  require(!held, "shard", "gradients of a device cannot be added while a lease is held");
  if (tensors_->failure) std::rethrow_exception(std::exchange(tensors_->failure, nullptr));
  ShardTensors::LeasedTensor& leased = tensors_->gradients;
  at::Tensor sum = more.to(sums);
  if (leased.is_there()) {
    // A copy to the device and back costs less than a host that waits for the device. All of it runs in the order of
    // the device's current stream.
    sum = at::empty(more.sizes(), more.options().dtype(sums));
    leased.offloaded->copy_to(sum);
    sum.add_(more);
  }
  tensors_->store(leased, sum);
}

void Shard::drop_gradients() const {
  Lease held;  // declared before the lock: the end of a lease needs the mutex
  std::unique_lock lock(tensors_->mutex);
  held = tensors_->current(lock);
  ShardTensors::drop(tensors_->gradients);
  tensors_->drops_gradients = false;
  if (held) held->gradients.reset();
}

void Shard::drop_gradients_after_update() const {
  const std::lock_guard lock(tensors_->mutex);
  tensors_->drops_gradients = true;
}

void Shard::drop_copy() const {
  Lease held;  // declared before the lock: the end of a lease needs the mutex
  std::unique_lock lock(tensors_->mutex);
  held = tensors_->current(lock);
  if (held || !tensors_->copy.offloaded || tensors_->copy_is_dropped || tensors_->copy_is_written) return;
  tensors_->copy.offloaded->discard();
  tensors_->copy_is_dropped = true;
}

void Shard::set_copy_written() const {
  const std::lock_guard lock(tensors_->mutex);
  tensors_->copy_is_written = true;
}

bool Shard::is_copy_written() const {
  const std::lock_guard lock(tensors_->mutex);
  return tensors_->copy_is_written;
}

bool Shard::adopt_copy(const at::Tensor& shown) const {
  const Lease held = lease({.values = Access::Write});
  const bool changed = adopt(held->values, held->copy, shown.defined() ? shown.to(held->copy.device()) : shown);
  const std::lock_guard lock(tensors_->mutex);
  tensors_->copy_is_written = false;
  return changed;
}

void Shard::make_copy() const {
  {
    const std::lock_guard lock(tensors_->mutex);
    if (!tensors_->copy_is_dropped) return;
  }
  lease({.copy = Access::Read});
}

void Shard::prefetch(const Needs& needs) const {
  const std::lock_guard lock(tensors_->mutex);
  tensors_->for_each_tensor(needs, nullptr, [](ShardTensors::LeasedTensor& leased, Access access, const at::Tensor&) {
    if (access != Access::None && leased.access == Access::None && leased.is_there()) leased.offloaded->prefetch();
  });
}

Lease Shard::lease(const Needs& needs) const {
  Lease held;  // declared before the lock: if no lease starts, its end needs the mutex to return what was borrowed
  std::unique_lock lock(tensors_->mutex);
  held = tensors_->current(lock);
  if (tensors_->failure) std::rethrow_exception(std::exchange(tensors_->failure, nullptr));
  if (!held) {
    held = Lease(new Resident(tensors_));
    tensors_->lease = held;
    tensors_->is_leased = true;
  }
  Needs wanted = needs;
  wanted.values = std::max(needs.values, tensors_->values.access);
  const bool has_copy = !tensors_->copy_is_dropped;
  if (!has_copy && needs.copy != Access::None)
    wanted.values = std::max(wanted.values, Access::Read), wanted.copy = Access::Write;
  const bool are_gradients = tensors_->directions_are_gradients();
  if (are_gradients) wanted.gradients = std::max(wanted.gradients, std::exchange(wanted.directions, Access::None));
  tensors_->for_each_tensor(wanted, held.get(), &ShardTensors::borrow);
  if (needs.directions != Access::None) {
    if (are_gradients)
      held->directions = held->gradients;
    else if (!held->directions.defined())
      tensors_->begin_directions(*held);
  }
  if (!has_copy && held->copy.defined()) tensors_->fill_copy(*held);
  const bool has_gradients = tensors_->gradients.access != Access::None || tensors_->directions.access != Access::None;
  if (tensors_->values.access == Access::Write && has_gradients) tensors_->is_updated = true;
  return held;
}

std::vector<at::Tensor> counted_parts(const at::Tensor& flat, const Piece& piece,
                                      const tensor::MeshCoordinates& coordinates) {
  const at::Tensor part = flat.narrow(0, piece.offset, piece.part.size);
  const auto boxes = tensor::local_boxes(piece.parameter->spec, coordinates, piece.part);
  const auto is_primary = [](const tensor::LocalBox& box) { return box.primary; };
  if (!boxes.empty() && std::all_of(boxes.begin(), boxes.end(), is_primary))
    return {part};  // padding is zero: no need to cut it out
  const auto shape = piece.parameter->spec.local_shape(coordinates);
  std::vector<at::Tensor> parts;
  for (const tensor::LocalBox& box : boxes)
    if (box.primary) parts.push_back(tensor::at_local_box(part, shape, piece.part, box));
  return parts;
}

at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::MeshCoordinates& coordinates) {
  const std::vector<at::Tensor> parts = counted_parts(flat, piece, coordinates);
  if (parts.size() == 1) return ops::sum_of_squares(parts.front().contiguous().view({-1}));
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kDouble));
  for (const at::Tensor& part : parts) sum.add_(ops::sum_of_squares(part.contiguous().view({-1})));
  return sum;
}

}  // namespace colossal::memory
