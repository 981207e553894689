#include "colossal/train/gathered.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::train {
namespace {

uint64_t fingerprint_of(const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = value.detach().cpu().contiguous();
  return checksum_number(here.const_data_ptr(), here.nbytes());
}

}  // namespace

struct Gathered::Scope {
  std::vector<const nn::Parameter*> parameters;
  std::vector<at::Tensor> held;        // a parameter of each chunk that is held
  std::vector<uint64_t> fingerprints;  // of the parameters' values; empty = not compared
  memory::ChunkStore* store;
  std::weak_ptr<int> training;

  ~Scope() {
    const std::shared_ptr<int> open = training.lock();
    if (!open) return;  // the chunks ended with the training
    --*open;
    for (const at::Tensor& parameter : held) store->let_go(*memory::Chunk::of(parameter));
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
    scope_->held.push_back(chunk->slots().front().parameter->value);
    store.hold(*chunk);
  }
}

Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() = default;

void Gathered::begin_check() {
  for (const nn::Parameter* p : scope_->parameters)
    if (!p->value.is_meta()) scope_->fingerprints.push_back(fingerprint_of(p->value));
}

void Gathered::end() {
  if (!scope_) return;
  const nn::Parameter* changed = nullptr;
  const std::vector<uint64_t>& before = scope_->fingerprints;
  for (size_t i = 0; i < before.size() && !changed && !scope_->training.expired(); ++i)
    if (fingerprint_of(scope_->parameters[i]->value) != before[i]) changed = scope_->parameters[i];
  const std::string name = changed ? changed->name : "";
  scope_.reset();
  require(!changed, "training", "values must not change inside gathered(): got another value of ", name,
          "; set values before initialize(), or load() them from a checkpoint");
}

}  // namespace colossal::train
