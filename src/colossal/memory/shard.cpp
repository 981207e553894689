#include "colossal/memory/shard.h"

#include <ATen/ATen.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "colossal/ops/reduce.h"

namespace colossal::memory {

struct ShardTensors {
  at::Tensor values, gradients, copy;  // as the home keeps them
  std::vector<at::Tensor> states;
  std::vector<Piece> pieces;
  std::shared_ptr<Home> home;
  bool values_stay = false, gradients_stay = false;
  at::TensorOptions options;
  int64_t length = 0;
  std::weak_ptr<Resident> lease;
  // A lease that has ended is not over before its tensors are back: until then nobody may begin another.
  bool is_lent = false;
  mutable std::mutex mutex;
  std::condition_variable returned;

  /// body(tensor) for all that a home may move.
  template <class Tensors, class Body>
  void for_own(Tensors& tensors, const Body& body) const {
    if (!home) return;
    if (!values_stay) body(tensors.values);
    if (!gradients_stay && tensors.gradients.defined()) body(tensors.gradients);
    for (auto& state : tensors.states) body(state);
  }
};

Resident::Resident(std::shared_ptr<ShardTensors> shard)
    : values(shard->values),
      gradients(shard->gradients),
      copy(shard->copy),
      states(shard->states),
      pieces(shard->pieces),
      shard_(std::move(shard)) {
  shard_->for_own(*this, [this](at::Tensor& tensor) { tensor = shard_->home->bring(tensor); });
}

Resident::~Resident() {
  const std::lock_guard lock(shard_->mutex);
  shard_->options = values.options();
  shard_->for_own(*this, [this](at::Tensor& tensor) { tensor = shard_->home->put(tensor); });
  shard_->values = std::move(values);
  shard_->gradients = std::move(gradients);
  shard_->copy = std::move(copy);
  shard_->states = std::move(states);
  shard_->is_lent = false;
  shard_->returned.notify_all();
}

Shard::Shard(Parts parts, std::vector<Piece> pieces) : tensors_(std::make_shared<ShardTensors>()) {
  tensors_->options = parts.values.options();
  tensors_->length = parts.values.numel();
  tensors_->values = std::move(parts.values);
  tensors_->copy = std::move(parts.copy);
  tensors_->values_stay = parts.values_stay;
  tensors_->home = std::move(parts.home);
  tensors_->pieces = std::move(pieces);
}

const std::vector<Piece>& Shard::pieces() const { return tensors_->pieces; }
int64_t Shard::length() const { return tensors_->length; }
at::TensorOptions Shard::options() const {
  const std::lock_guard lock(tensors_->mutex);
  return tensors_->options;
}

size_t Shard::add_state(at::Tensor initial) const {
  const Lease held = lease();
  held->states.push_back(std::move(initial));
  return held->states.size() - 1;
}

void Shard::set_whole_gradients(at::Tensor gradients) const {
  const Lease held = lease();
  tensors_->gradients_stay = true;
  held->gradients = std::move(gradients);
}

void Shard::expect() const {
  const std::lock_guard lock(tensors_->mutex);
  if (!tensors_->is_lent)
    tensors_->for_own(*tensors_, [this](const at::Tensor& tensor) { tensors_->home->expect(tensor); });
}

Lease Shard::lease() const {
  std::unique_lock lock(tensors_->mutex);
  for (;;) {
    if (Lease held = tensors_->lease.lock()) return held;
    if (!tensors_->is_lent) break;
    tensors_->returned.wait(lock);
  }
  const Lease made(new Resident(tensors_));
  tensors_->is_lent = true;
  tensors_->lease = made;
  return made;
}

at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::Place& place) {
  const at::Tensor part = flat.narrow(0, piece.offset, piece.part.size);
  const auto blocks = tensor::blocks(piece.parameter->spec, place, piece.part);
  bool all_primary = true, none_primary = true;
  for (const tensor::Block& block : blocks) (block.primary ? none_primary : all_primary) = false;
  if (all_primary && !none_primary) return ops::sum_of_squares(part);  // padding is zero: no need to cut it out
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kDouble));
  const auto shape = piece.parameter->spec.local_shape(place);
  for (const tensor::Block& block : blocks)
    if (block.primary)
      sum.add_(ops::sum_of_squares(tensor::at_block(part, shape, piece.part, block).contiguous().view({-1})));
  return sum;
}

}  // namespace colossal::memory
