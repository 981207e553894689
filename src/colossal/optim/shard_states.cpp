#include "colossal/optim/shard_states.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"

namespace colossal::optim {
namespace {

at::Tensor narrowed(const at::Tensor& flat, int64_t offset, int64_t size) {
  return flat.defined() ? flat.narrow(0, offset, size) : flat;
}

/// Returns the run of elements [offset, offset + size) of a shard, whose parameters have the rate and decay of `first`.
Run run_between(const OptimizerConfig& config, const memory::Resident& shard, double gradient_scale,
                const nn::Parameter& first, int64_t offset, int64_t size,
                std::optional<ops::FlatUpdate::Chance> chance) {
  at::Tensor gradients = narrowed(shard.gradients, offset, size);
  // bf16 values without master weights may have gradients in fp32, the sums of several micro-batches.
  if (shard.values.scalar_type() == at::kBFloat16) gradients = gradients.to(at::kBFloat16);
  return {{narrowed(shard.values, offset, size), gradients, narrowed(shard.copy, offset, size), gradient_scale, chance},
          offset,
          size,
          first.rate,
          first.decay * config.weight_decay,
          first};
}

}  // namespace

tensor::Stored stored_state(const memory::Shard& shard, size_t place, at::ScalarType dtype, int64_t offset,
                            int64_t size) {
  return {shard.options().dtype(dtype),
          {size},
          [=](bool writes) {
            const memory::Lease lease = shard.lease(
                {.states = writes ? Access::Write : Access::Read, .places = {.first = place, .end = place + 1}});
            return tensor::Held{lease->states[place].narrow(0, offset, size), lease};
          },
          shard.identity()};
}

ShardStates::ShardStates(const std::vector<memory::Shard>& shards, std::vector<std::string> kinds)
    : kinds_(std::move(kinds)) {
  for (const memory::Shard& shard : shards)
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const size_t place = shard.add_state(at::zeros({shard.length()}, shard.options()));
      if (kind == 0) first_ = place;
    }
}

std::vector<at::Tensor> ShardStates::of(const memory::Resident& shard, int64_t offset, int64_t size) const {
  std::vector<at::Tensor> parts;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) parts.push_back(of(shard, kind).narrow(0, offset, size));
  return parts;
}

void ShardStates::add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const {
  for (const memory::Shard& shard : shards)
    for (const memory::Piece& piece : shard.pieces())
      for (size_t kind = 0; kind < kinds_.size(); ++kind)
        tensors.push_back(state_of_piece(
            kinds_[kind],
            stored_state(shard, first_ + kind, shard.options().dtype().toScalarType(), piece.offset, piece.part.size),
            piece));
}

PieceStates::PieceStates(const std::vector<memory::Shard>& shards, std::vector<std::string> kinds,
                         const std::function<bool(const nn::Parameter&)>& wanted)
    : kinds_(std::move(kinds)) {
  for (const memory::Shard& shard : shards) {
    int64_t length = 0;
    std::vector<int64_t>& places = places_.emplace_back();
    for (const memory::Piece& piece : shard.pieces()) {
      const bool is_wanted = wanted(*piece.parameter);
      places.push_back(is_wanted ? length : -1);
      if (is_wanted) length += piece.part.size;
    }
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const size_t place = shard.add_state(at::zeros({length}, shard.options()));
      if (kind == 0) first_ = place;
    }
  }
}

std::vector<at::Tensor> PieceStates::of(size_t index, const memory::Resident& shard, size_t piece) const {
  std::vector<at::Tensor> states;
  const int64_t place = places_[index][piece];
  for (size_t kind = 0; place >= 0 && kind < kinds_.size(); ++kind)
    states.push_back(shard.states[first_ + kind].narrow(0, place, shard.pieces[piece].part.size));
  return states;
}

void PieceStates::add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const {
  for (size_t i = 0; i < shards.size(); ++i)
    for (size_t p = 0; p < places_[i].size(); ++p) {
      const memory::Piece& piece = shards[i].pieces()[p];
      for (size_t kind = 0; places_[i][p] >= 0 && kind < kinds_.size(); ++kind)
        tensors.push_back(
            state_of_piece(kinds_[kind],
                           stored_state(shards[i], first_ + kind, shards[i].options().dtype().toScalarType(),
                                        places_[i][p], piece.part.size),
                           piece));
    }
}

Run run_of(const OptimizerConfig& config, const memory::Resident& shard, const memory::Piece& piece, int64_t step,
           double gradient_scale) {
  const auto& [parameter, offset, part] = piece;
  std::optional<ops::FlatUpdate::Chance> chance;
  if (config.stochastic_rounding) {
    const uint64_t seed = derive_seed(derive_seed(0, "stochastic rounding"), static_cast<uint64_t>(step));
    chance = {derive_seed(seed, parameter->name), static_cast<uint64_t>(part.first)};
  }
  return run_between(config, shard, gradient_scale, *parameter, offset, part.size, chance);
}

void for_updates(const OptimizerConfig& config, const memory::Resident& shard, int64_t step, double gradient_scale,
                 bool apart, const std::function<void(const Run&)>& body) {
  if (apart || config.stochastic_rounding) {
    for (const memory::Piece& piece : shard.pieces) body(run_of(config, shard, piece, step, gradient_scale));
    return;
  }
  size_t piece = 0;  // first piece of the run
  const auto factors = [](const nn::Parameter& p) { return std::pair(p.rate, p.decay); };
  memory::for_runs(shard.pieces, factors, [&](const auto&, int64_t offset, int64_t size) {
    while (shard.pieces[piece].offset < offset) ++piece;
    body(run_between(config, shard, gradient_scale, *shard.pieces[piece].parameter, offset, size, {}));
  });
}

at::Tensor of_piece(const at::Tensor& flat, const memory::Piece& piece) {
  return flat.narrow(0, piece.offset, piece.part.size);
}

void descend(const memory::Resident& shard, const memory::Piece& piece, const at::Tensor& direction,
             const Descent& descent) {
  ops::sgd_({of_piece(shard.values, piece), of_piece(direction, piece),
             narrowed(shard.copy, piece.offset, piece.part.size), descent.scale},
            {},
            {.learning_rate = descent.rate * piece.parameter->rate,
             .weight_decay = descent.weight_decay * piece.parameter->decay});
}

}  // namespace colossal::optim
