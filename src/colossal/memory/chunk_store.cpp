#include "colossal/memory/chunk_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/store_plan.h"
#include "colossal/memory/written_values.h"

namespace colossal::memory {

Sharing Sharing::of_stage(int stage) {
  require(stage >= 0 && stage <= 3, "zero", "must be 0, 1, 2 or 3: got ", stage);
  return {stage >= 1, stage >= 2, stage >= 3};
}

namespace {

/// Maximum number of concurrent share() calls. Each may need additional memory, on the host or for compressed values.
constexpr size_t kSharesUnderWay = 4;

bool is_among(const std::vector<size_t>& numbers, const Chunk& chunk) {
  return std::find(numbers.begin(), numbers.end(), chunk.index()) != numbers.end();
}

}  // namespace

ChunkStore::ChunkStore(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options,
                       std::unique_ptr<Placement> placement)
    : options_(options), mesh_(mesh), placement_(placement ? std::move(placement) : std::make_unique<GatherNext>()) {
  StorePlan plan = plan_store(parameters, mesh, options);
  padding_ = plan.padding;
  for (PlannedChunk& chunk : plan.chunks) add(std::move(chunk), parameters);
  if (options.sharing.parameters && !chunks_.empty()) observer_.emplace();
}

ChunkStore::~ChunkStore() = default;

void ChunkStore::add(PlannedChunk planned, const nn::Parameters& parameters) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(planned.dtype).device(parameters.options().device);
  std::vector<Slot>& slots = planned.slots;
  const int64_t length = planned.length;
  comm::Group& sharers = *planned.sharers;
  const bool trained = planned.is_trained;
  const bool has_masters = trained && options_.masters.has_value();
  const KindScope kind(has_masters ? Kind::States : Kind::Parameters);
  const at::Tensor exact = options_.inference
                               ? at::empty({1}, options).expand({length})  // has sizes but no memory
                               : at::zeros({length}, has_masters ? options.dtype(*options_.masters) : options);
  for (const Slot& slot : options_.inference ? std::vector<Slot>{} : slots) {
    const at::Tensor values = view_of_slot(exact, slot);
    if (parameters.options().without_memory)
      parameters.draw(*slot.parameter, values);
    else if (!slot.parameter->is_empty)
      values.copy_(slot.parameter->value);
  }
  std::shared_ptr<OffloadStore> offload = options_.offload ? options_.offload : std::make_shared<InPlace>();
  movable_stores_.push_back(trained && options_.on_device
                                ? std::make_shared<MovableStore>(offload, options.device(), options_.on_device)
                                : nullptr);
  if (movable_stores_.back()) offload = movable_stores_.back();
  // An all_gather of a lossy copy would overwrite the values themselves.
  const bool is_lossless = !at::isFloatingType(planned.dtype) || (!has_masters && !options_.sharing.parameters);
  const at::Device borrow_device = offload->borrow_device(exact.device());
  {
    const KindScope parameters_kind(Kind::Parameters);
    chunks_.push_back(std::make_unique<Chunk>(
        chunks_.size(), std::move(slots), has_masters ? exact.to(options.dtype()) : exact, sharers,
        is_lossless ? std::nullopt : options_.compression, *offload, options_.capacity,
        options_.sharing.parameters ? this : nullptr, options_.inference && borrow_device == exact.device()));
  }
  Chunk& chunk = *chunks_.back();
  bytes_.push_back(chunk.bytes());
  // If there are several groups of sharers, the first one counts and saves the elements.
  const int replica =
      mesh_.coordinates().index(tensor::replicas(chunk.slots().front().parameter->spec, mesh_.coordinates()));
  const bool counts = replica / sharers.size() == 0;
  // Permanent parameters on an accelerator: an update on the host gets copies of them.
  const bool is_far = chunk.stays() && borrow_device != exact.device();
  std::vector<Shard>& shards = trained ? shards_ : frozen_;
  first_shards_.push_back(shards.size());
  for (const Segment& segment : chunk.segments()) {
    const std::shared_ptr<OffloadedTensor> offloaded =
        is_far ? copied_to(borrow_device, segment.offloaded) : segment.offloaded;
    Shard::Parts parts{.values = offloaded, .options = exact.options(), .length = segment.length, .offload = offload};
    if (has_masters) {
      const at::Tensor own = exact.narrow(0, chunk.part_begin() + segment.first, segment.length);
      parts.values = offload->offload(sharers.size() > 1 ? own.clone() : own);
      parts.copy = offloaded;
    }
    std::vector<Piece> pieces = pieces_of(chunk.slots(), chunk.part_begin() + segment.first, segment.length, counts);
    std::vector<Piece> updated = trained ? trained_pieces(pieces, mesh_.coordinates()) : pieces;
    shards.emplace_back(std::move(parts), std::move(pieces), std::move(updated));
  }
}

std::span<const Shard> ChunkStore::shards_of(const Chunk& chunk) const {
  const std::vector<Shard>& shards = chunk.trained() ? shards_ : frozen_;
  return {&shards[first_shards_[chunk.index()]], chunk.segments().size()};
}

void ChunkStore::store(Chunk& chunk) {
  if (!options_.inference && !failure_ && takes_part_ && is_among(gathered_, chunk))
    attempt([&] { store_written(chunk, shards_of(chunk)); });
}

bool ChunkStore::has_fingerprint(const Chunk& chunk) const {
  return options_.offload && options_.masters && chunk.trained() && chunk.stays();
}

void ChunkStore::take_fingerprints() {
  if (!is_watched_) return;
  fingerprints_.resize(chunks_.size());
  for (const auto& chunk : chunks_)
    if (has_fingerprint(*chunk)) fingerprints_[chunk->index()] = fingerprint_of(*chunk);
}

void ChunkStore::watch() {
  is_watched_ = true;
  take_fingerprints();
}

void ChunkStore::separate_moved() {
  const at::NoGradGuard no_grad;
  for (const auto& chunk : chunks_)
    for (size_t slot = 0; slot < chunk->slots().size(); ++slot) {
      if (chunk->is_attached(slot)) continue;
      at::Tensor& value = chunk->slots()[slot].parameter->value;
      const auto has_memory = [&](const auto& one) { return one->has_memory_of(value); };
      const auto lender = std::find_if(chunks_.begin(), chunks_.end(), has_memory);
      if (lender == chunks_.end()) continue;
      hold(**lender);
      value.set_data(value.detach().clone());
      let_go(**lender);
    }
}

void ChunkStore::keep_written() {
  if (is_watched_) separate_moved();
  for (const auto& chunk : chunks_) {
    const std::span<const Shard> shards = shards_of(*chunk);
    store(*chunk);
    if (is_watched_) attach_moved(*chunk, shards);
    if (!options_.masters || !chunk->trained() || (chunk->stays() && !is_watched_)) continue;
    if (has_fingerprint(*chunk) && fingerprint_of(*chunk) == fingerprints_[chunk->index()]) continue;
    attempt([&] { adopt_written(*chunk, shards); });
  }
}

void ChunkStore::updated(bool loaded) {
  close_pass();
  for_chunks([&](Chunk& chunk) {  // chunks that a policy kept gathered have the old values
    if (!chunk.trained() && !loaded) return;
    chunk.set_written(false);
    release(chunk);
  });
  if (!takes_part_) rethrow();
  const at::NoGradGuard no_grad;
  if (loaded)
    attempt([&] {
      for_leases(shards_, {.values = Access::Read, .copy = Access::Write}, [](size_t, Resident& shard) {
        if (shard.copy.defined()) shard.copy.copy_(shard.values);
      });
    });
  std::deque<comm::Work> shares;  // oldest first
  const auto end_oldest = [&] {
    comm::Work oldest = std::move(shares.front());
    shares.pop_front();
    oldest.wait();
  };
  for_chunks([&](Chunk& chunk) {
    if (!chunk.stays() || !(chunk.trained() || loaded)) return;
    // An error of the oldest one does not stop this loop, because ranks without the error go on to this chunk, too.
    if (shares.size() == kSharesUnderWay) attempt_together(end_oldest);
    shares.push_back(chunk.share());
  });
  while (!shares.empty()) attempt_together(end_oldest);
  take_fingerprints();
  rethrow();
}

Situation ChunkStore::situation() const {
  Situation now{timeline_, gathered_, bytes_};
  for (const size_t chunk : gathered_)
    if (chunks_[chunk]->state() == Chunk::State::Computing) now.in_use.push_back(chunk);
  return now;
}

void ChunkStore::end_pass() {
  close_pass();
  rethrow();
}

void ChunkStore::close_pass() {
  timeline_.end_pass();
  const std::vector<size_t> gone = placement_->after_pass(situation());
  for_chunks([&](Chunk& chunk) {
    if (is_among(gone, chunk))
      release(chunk);
    else if (chunk.state() == Chunk::State::Gathering)  // the gather reads the part, which an update would overwrite
      chunk.ready();
  });
  // A chunk that has values but was not gathered is filled with NaN, even if rethrow() has thrown the error already.
  const bool failed = !takes_part_ || std::any_of(chunks_.begin(), chunks_.end(), [&](const auto& chunk) {
    return !chunk->stays() && chunk->state() != Chunk::State::Sharded && !is_among(gathered_, *chunk);
  });
  if (failed) release_all();
  placement_->settled(situation());
}

void ChunkStore::release_all() {
  for_chunks([&](Chunk& chunk) { release(chunk); });
}

void ChunkStore::keep_failure(std::exception_ptr error, bool takes_part) {
  // Later errors follow from the first failure and are not reported.
  if (!failure_) failure_ = std::move(error);
  takes_part_ = takes_part_ && takes_part;
}

void ChunkStore::attempt(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    keep_failure(std::current_exception(), /*takes_part=*/true);
  }
}

template <class Body>
void ChunkStore::attempt_together(const Body& body) {
  try {
    body();
  } catch (...) {
    keep_failure(std::current_exception(), /*takes_part=*/false);
  }
}

template <class Body>
void ChunkStore::for_chunks(const Body& body) {
  for (const auto& chunk : chunks_) attempt_together([&] { body(*chunk); });
}

void ChunkStore::rethrow() {
  if (!failure_) return;
  release_all();
  takes_part_ = true;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ChunkStore::gather(Chunk& chunk) {
  if (!chunk.gather()) return;
  gathered_.push_back(chunk.index());
  ++counts_.gathers;
  const MovableStore* movable = movable_store_of(chunk);
  if (!movable || !movable->is_on_device()) counts_.loaded += chunk.bytes() / chunk.sharers().size();
  counts_.gathered += chunk.bytes();
  counts_.peak_gathered = std::max(counts_.peak_gathered, counts_.gathered);
}

void ChunkStore::release(Chunk& chunk) {
  store(chunk);
  const auto count = [&] {
    if (std::erase(gathered_, chunk.index()) == 0) return;  // filled with NaN instead of gathered
    ++counts_.releases;
    counts_.gathered -= chunk.bytes();
  };
  try {
    if (chunk.release()) count();
  } catch (...) {
    count();  // the chunk is released even if its pending gather failed
    throw;
  }
}

void ChunkStore::before_use(Chunk& chunk) {
  // An operator inside of one that reads the chunk already. Kernels of devices differ in such operators, but the order
  // of uses, by which chunks are gathered and released, must not.
  if (chunk.state() == Chunk::State::Computing) return chunk.begin_use();
  // Observers run inside the code that called the operator, which may record gradients.
  const at::NoGradGuard no_grad;
  try {
    ChunkMoves moves;
    const bool changes = chunk.index() != timeline_.current() && takes_part_;
    if (changes) {
      if (!is_in_pass() && before_pass_) before_pass_();
      timeline_.used(chunk.index());
      moves = placement_->before_use(situation());
    }
    for (const size_t other : moves.release) release(*chunks_[other]);
    if (changes) placement_->released();
    if (!takes_part_ && chunk.state() == Chunk::State::Sharded) chunk.fill_with_nan();
    gather(chunk);
    chunk.begin_use();
    for (const size_t other : moves.gather) gather(*chunks_[other]);
    if (changes) placement_->settled(situation());
  } catch (...) {
    begin_failed_use(chunk);
  }
}

void ChunkStore::begin_failed_use(Chunk& chunk) {
  keep_failure(std::current_exception(), /*takes_part=*/false);
  if (chunk.state() == Chunk::State::Computing) return;
  if (std::erase(gathered_, chunk.index()) > 0) counts_.gathered -= chunk.bytes();
  chunk.fill_with_nan();
  chunk.begin_use();
}

void ChunkStore::hold(Chunk& chunk) {
  if (chunk.stays()) return;
  const at::NoGradGuard no_grad;
  try {
    if (!takes_part_ && chunk.state() == Chunk::State::Sharded) chunk.fill_with_nan();
    gather(chunk);
    chunk.begin_use();
  } catch (...) {
    begin_failed_use(chunk);
  }
}

void ChunkStore::let_go(Chunk& chunk) {
  if (chunk.stays()) return;
  chunk.end_use();
  attempt_together([&] { release(chunk); });
}

void ChunkStore::before_borrow(Chunk& chunk, size_t segment) {
  if (chunk.trained()) shards_of(chunk)[segment].make_copy();
}

void ChunkStore::not_borrowed(Chunk&, std::exception_ptr error) { keep_failure(std::move(error), /*takes_part=*/true); }

void ChunkStore::after_use(Chunk& chunk) { chunk.end_use(); }

}  // namespace colossal::memory
