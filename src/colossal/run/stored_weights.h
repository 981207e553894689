// The weights of a chunk store as tensors that a checkpoint saves and fills, chunk by chunk.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/frozen_form.h"

namespace colossal::run {

/// Returns this rank's part of each parameter of `store`, trained and frozen, under the parameter's name. They are
/// ordered by shard, so that each shard is loaded once. After filling them call ChunkStore::updated(). `store` need not
/// outlive them.
std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store);

/// Returns the same tensors for filling. In place of a parameter whose form encodes numbers
/// (nn::FrozenFilling::Numbers) there is one tensor of the whole parameter in fp32, on the CPU, with the spec of a
/// tensor that every rank holds; of a stack each matrix of this rank is a part of such a tensor. In place of a
/// parameter that takes codes of a folder there is its whole value on this rank, on the CPU, which
/// checkpoint::import_weights() fills. These can only be written, whole; when the caller releases one, this rank keeps
/// what it stores of it. So one such tensor is in memory at a time. `store` must outlive the tensors.
/// ChunkStore::updated() throws errors of making and storing the codes, such as values that are not finite.
std::vector<checkpoint::NamedTensor> fillable_weights_of(memory::ChunkStore& store, const nn::Parameters& parameters);

/// Returns the same tensors for a parameter in memory, in no store: the value itself, if it is filled element by
/// element. `attempt` runs what follows a release and keeps its errors. It and the parameter must outlive the tensors.
std::vector<checkpoint::NamedTensor> fillable_weights(const nn::Parameters& parameters, const nn::Parameter& parameter,
                                                      std::function<void(const std::function<void()>&)> attempt);

/// Returns this rank's part of the parameters that checkpoints save (nn::Treatment::saved), under their names in the
/// checkpoint (nn::Parameter::saved_name).
std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store);

}  // namespace colossal::run
