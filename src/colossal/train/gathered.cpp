#include "colossal/train/gathered.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::train {
namespace {

/// Returns a number for the values of a sharded or offloaded parameter; 0 for another one, and on meta.
uint64_t fingerprint_of(const nn::Parameter& parameter) {
  if (parameter.value.is_meta() || !memory::Chunk::of(parameter.value)) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor here = parameter.value.detach().cpu().contiguous();
  return checksum_number(here.const_data_ptr(), here.nbytes());
}

/// Returns whether all ranks have the same numbers. Communication: an all_reduce of 16 bytes.
bool are_same(const std::vector<uint64_t>& numbers, comm::Group& ranks) {
  const uint64_t all = checksum_number(numbers.data(), numbers.size() * sizeof(uint64_t));
  const auto mine = static_cast<int64_t>(all >> 1);
  at::Tensor range = at::tensor({mine, -mine}, at::kLong);
  ranks.all_reduce(range, comm::Reduce::Max).wait();
  return range[0].item<int64_t>() == -range[1].item<int64_t>();
}

}  // namespace

struct Gathered::Scope {
  std::vector<const nn::Parameter*> parameters;
  std::vector<memory::Chunk*> held;    // valid while `training` is
  std::vector<uint64_t> fingerprints;  // of the parameters' values; empty = not compared
  memory::ChunkStore* store;
  std::weak_ptr<int> training;

  ~Scope() {
    const std::shared_ptr<int> open = training.lock();
    if (!open) return;  // the chunks ended with the training
    --*open;
    for (memory::Chunk* chunk : held) store->let_go(*chunk);
  }
};

Gathered::Gathered(std::vector<const nn::Parameter*> parameters, memory::ChunkStore& store,
                   const std::shared_ptr<int>& training)
    : scope_(new Scope{std::move(parameters), {}, {}, &store, training}) {
  ++*training;
  std::vector<memory::Chunk*> chunks;
  for (const nn::Parameter* p : scope_->parameters)
    if (memory::Chunk* chunk = memory::Chunk::of(p->value)) chunks.push_back(chunk);
  std::sort(chunks.begin(), chunks.end(), [](const auto* a, const auto* b) { return a->index() < b->index(); });
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  for (memory::Chunk* chunk : chunks) {
    scope_->held.push_back(chunk);
    store.hold(*chunk);
  }
}

Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() = default;

void Gathered::begin_check() {
  for (const nn::Parameter* p : scope_->parameters) scope_->fingerprints.push_back(fingerprint_of(*p));
}

void Gathered::end() {
  if (!scope_) return;
  const std::unique_ptr<Scope> scope = std::move(scope_);
  if (scope->training.expired() || scope->held.empty()) return;
  const nn::Parameter* changed = nullptr;
  std::vector<uint64_t> after;
  for (size_t i = 0; i < scope->fingerprints.size(); ++i) {
    const nn::Parameter* p = scope->parameters[i];
    after.push_back(fingerprint_of(*p));
    if (after.back() == scope->fingerprints[i] || after.back() == 0) continue;
    memory::Chunk::of(p->value)->set_written(true);
    changed = p;
  }
  if (are_same(after, scope->store->mesh().all())) return;
  for (memory::Chunk* chunk : scope->held) chunk->set_written(false);
  require(false, "training", "values written inside gathered() must be the same on all ranks: got others ",
          changed ? concat("for ", changed->name) : "on another rank",
          "; write them on every rank, for example after a broadcast. None of them is kept");
}

}  // namespace colossal::train
