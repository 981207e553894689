#include "colossal/memory/chunk_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_plan.h"

namespace colossal::memory {
namespace {

/// What parameters of one chunk have in common: trained or not, ShardSpec::gradient_axes (and with them the replicas
/// that may share), and `stages` where there are several.
using Family = std::tuple<bool, std::vector<std::string>, std::vector<int>>;

Family family_of(const nn::Parameter& p) {
  return {p.value.requires_grad(), p.spec.gradient_axes, p.spec.stages.size() > 1 ? p.spec.stages : std::vector<int>{}};
}

comm::Group& sharers_of(const tensor::ShardSpec& spec, comm::Mesh& mesh, const ChunkOptions& options) {
  const std::vector<std::string> axes = tensor::replicas(spec, mesh.place());
  const int replicas = mesh.place().size(axes);
  if (options.zero > 0 && (options.sharers == 0 || options.sharers >= replicas)) return mesh.group(axes);
  const int wanted = options.zero == 0 ? 1 : options.sharers;
  require(wanted >= 1 && replicas % wanted == 0, "zero", "the replicas that share must divide those there are: got ",
          wanted, " of ", replicas);
  return replicas == 1 ? mesh.group(axes) : mesh.neighbours(axes, wanted);
}

std::vector<Piece> pieces_of(const Chunk& chunk, bool counts) {
  std::vector<Piece> pieces;
  const int64_t begin = chunk.part_begin(), end = begin + chunk.part_length();
  for (const Slot& slot : chunk.slots()) {
    const int64_t first = std::max(slot.offset, begin), last = std::min(slot.offset + slot.size, end);
    if (first < last) pieces.push_back({slot.parameter, first - begin, {first - slot.offset, last - first, counts}});
  }
  return pieces;
}

}  // namespace

ChunkStore::ChunkStore(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options)
    : options_(options), mesh_(mesh) {
  require(options.zero >= 0 && options.zero <= 3, "zero", "must be 0, 1, 2 or 3: got ", options.zero);
  std::vector<nn::Parameter*> held;
  std::vector<PackItem> items;
  std::map<Family, int64_t> families;
  std::vector<comm::Group*> sharers;  // of each family
  for (nn::Parameter& p : parameters) {
    const auto [family, is_new] = families.emplace(family_of(p), families.size());
    if (is_new) sharers.push_back(&sharers_of(p.spec, mesh, options));
    held.push_back(&p);
    items.push_back({p.value.numel(), family->second, sharers[static_cast<size_t>(family->second)]->size()});
  }
  const ChunkPlan plan = plan_chunks(items, options.capacity);
  padding_ = plan.padding;
  for (const PackedChunk& packed : plan.chunks) {
    std::vector<Slot> slots;
    for (size_t i = 0; i < packed.items.size(); ++i)
      slots.push_back({held[packed.items[i]], packed.offsets[i], items[packed.items[i]].size});
    const auto family = static_cast<size_t>(items[packed.items[0]].group);
    add(std::move(slots), packed.length, *sharers[family], parameters);
  }
  if (options.zero == 3) observer_.emplace();
}

ChunkStore::~ChunkStore() = default;

void ChunkStore::add(std::vector<Slot> slots, int64_t length, comm::Group& sharers, const nn::Parameters& parameters) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(parameters.options().dtype).device(parameters.options().device);
  const bool trained = slots.front().parameter->value.requires_grad();
  const bool has_masters = trained && options_.masters.has_value();
  const KindScope kind(has_masters ? Kind::States : Kind::Parameters);
  const at::Tensor exact = at::zeros({length}, has_masters ? options.dtype(*options_.masters) : options);
  for (const Slot& slot : slots) {
    const at::Tensor home = view_of_slot(exact, slot);
    if (parameters.options().without_memory)
      parameters.draw(*slot.parameter, home);
    else
      home.copy_(slot.parameter->value);
  }
  const bool is_lossless = !has_masters && options_.zero < 3;  // gathered over the values themselves
  {
    const KindScope parameters_kind(Kind::Parameters);
    chunks_.push_back(std::make_unique<Chunk>(
        chunks_.size(), std::move(slots), has_masters ? exact.to(options.dtype()) : exact, sharers,
        is_lossless ? std::nullopt : options_.compression, options_.zero == 3 ? this : nullptr));
  }
  Chunk& chunk = *chunks_.back();
  // of several runs of sharers the first saves and counts
  const int replica = mesh_.place().index(tensor::replicas(chunk.slots().front().parameter->spec, mesh_.place()));
  const bool counts = replica / sharers.size() == 0;
  Shard shard{chunk.part(), {}, {}, pieces_of(chunk, counts)};
  if (has_masters) {
    const at::Tensor own = exact.narrow(0, chunk.part_begin(), chunk.part_length());
    shard.values = sharers.size() > 1 ? own.clone() : own;
    shard.copy = chunk.part();
  }
  (trained ? shards_ : frozen_).push_back(std::move(shard));
}

void ChunkStore::updated(bool loaded) {
  end_pass();
  const at::NoGradGuard no_grad;
  if (loaded)
    for (Shard& shard : shards_)
      if (shard.copy.defined()) shard.copy.copy_(shard.values);
  for (const auto& chunk : chunks_)
    if (chunk->stays() && (chunk->trained() || loaded)) chunk->share();
}

void ChunkStore::end_pass() {
  for (const auto& chunk : chunks_) {
    try {
      release(*chunk);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  order_.end_pass();
  previous_ = current_ = nullptr;
  rethrow();
}

void ChunkStore::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ChunkStore::gather(Chunk& chunk) {
  if (!chunk.gather()) return;
  ++counts_.gathers;
  counts_.gathered += chunk.bytes();
  counts_.peak_gathered = std::max(counts_.peak_gathered, counts_.gathered);
}

void ChunkStore::release(Chunk& chunk) {
  if (!chunk.release()) return;
  ++counts_.releases;
  counts_.gathered -= chunk.bytes();
}

void ChunkStore::before_use(Chunk& chunk) {
  const at::NoGradGuard no_grad;  // observers run inside whatever called the operator
  try {
    const bool changes = &chunk != current_ && !failure_;
    if (changes) {
      previous_ = std::exchange(current_, &chunk);
      order_.used(chunk.index());
      make_room();
    }
    if (failure_ && chunk.state() == Chunk::State::Sharded) chunk.fill_with_nan();
    gather(chunk);
    chunk.begin_use();
    const auto next = order_.next();
    if (changes && next) gather(*chunks_[*next]);
  } catch (...) {
    failure_ = std::current_exception();
    if (chunk.state() != Chunk::State::Computing) {
      chunk.fill_with_nan();
      chunk.begin_use();
    }
  }
}

void ChunkStore::after_use(Chunk& chunk) { chunk.end_use(); }

void ChunkStore::make_room() {
  if (!options_.reshard_after_forward) return;
  const auto next = order_.next();
  for (const auto& chunk : chunks_) {
    const bool is_wanted =
        chunk.get() == current_ || (next ? chunk.get() == chunks_[*next].get() : chunk.get() == previous_);
    if (!is_wanted) release(*chunk);
  }
}

}  // namespace colossal::memory
