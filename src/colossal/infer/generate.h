// Generates text with a model, token by token: one request that runs alone.
//
//   infer::generate(*saved.model, {.prompt = ids, .end_ids = saved.end_ids, .options = {.max_tokens = 100}},
//                   [](int64_t token) { ...; return true; });
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/request.h"

namespace colossal::infer {

/// Runs one request with an engine that has EngineOptions::alone. Calls `emit` with each new token until it returns
/// false; an empty `emit` is not called. Returns the new tokens without an end token.
///
/// Communication, cost: the same as LoneRunner. All ranks of a layout must call it with equal arguments, and `emit`
///                      must return the same values on all ranks.
/// Errors: errors of Engine and Engine::add(), before any communication; of the model's forward passes; of `emit`.
///         ("generate"): an error of the constraint or sampler.
std::vector<int64_t> generate(distributed::DistributedModel& model, Request request,
                              const std::function<bool(int64_t)>& emit = {});

}  // namespace colossal::infer
