#include "colossal/parallel/data/gradient_reducer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/ops/reduce.h"

namespace colossal::parallel {
namespace {

using memory::Chunk;
using memory::Slot;

/// Where the gradients of a chunk are summed beside its sharers: one group after the other.
std::vector<comm::Group*> further_groups(comm::Mesh& mesh, const Chunk& chunk) {
  const tensor::ShardSpec& spec = chunk.slots().front().parameter->spec;
  const std::vector<std::string> replicas = tensor::replicas(spec, mesh.place());
  const int sharers = chunk.sharers().size();
  std::vector<std::string> axes = spec.gradient_axes;
  if (sharers > 1)
    std::erase_if(
        axes, [&](const auto& axis) { return std::find(replicas.begin(), replicas.end(), axis) != replicas.end(); });
  std::vector<comm::Group*> groups;
  if (spec.stages.size() > 1)
    groups.push_back(&mesh.among(axes, "pipeline", spec.stages));
  else if (!axes.empty())
    groups.push_back(&mesh.group(axes));
  if (sharers > 1 && sharers < mesh.place().size(replicas)) groups.push_back(&mesh.counterparts(replicas, sharers));
  std::erase_if(groups, [](const comm::Group* group) { return group->size() == 1; });
  return groups;
}

/// The gradients of one chunk.
struct Gradients {
  Chunk* chunk;
  memory::Shard* shard;
  std::vector<comm::Group*> further;
  std::optional<comm::Compression> compression;  // of what replicas send
  bool late;                                     // copies in other stages: leaves in finish()
  at::Tensor whole;                              // [chunk length]; undefined: none came yet
  std::vector<bool> filled;                      // by slot: whole has something of it
  int64_t pending = 0;                           // gradients to come in this pass
  bool left = false;
  at::Tensor received;  // under way
  comm::Work work;
};

}  // namespace

struct GradientReducer::State {
  State(memory::ChunkStore& store, const GradientOptions& options)
      : store(store), options(options), zero(store.options().zero) {
    size_t shard = 0;
    for (const auto& chunk : store.chunks()) {
      if (!chunk->trained()) continue;
      Gradients g{
          chunk.get(), &store.shards()[shard++], further_groups(store.mesh(), *chunk), {}, false, {}, {}, 0, false, {},
          {}};
      const tensor::ShardSpec& spec = chunk->slots().front().parameter->spec;
      if (store.mesh().place().size(tensor::replicas(spec, store.mesh().place())) > 1)
        g.compression = store.options().compression;
      // Copies in other stages come to their last gradient at other times, and wait for this rank's transfers before: a
      // collective that blocks, as small ones may, must not stand in the way of those.
      g.late = spec.stages.size() > 1;
      g.filled.assign(chunk->slots().size(), false);
      alone = alone && g.further.empty() && chunk->sharers().size() == 1;
      chunks.insert(chunks.begin(), std::move(g));
    }
    const auto dtype = [&] { return chunks.front().chunk->part().scalar_type(); };
    is_view = zero <= 1 && (chunks.empty() || options.sums == dtype());
    if (zero <= 1)
      for (Gradients& g : chunks) keep_whole(g);
  }

  /// Gradients that stay whole through the run: autograd adds to them in place where the dtypes agree.
  void keep_whole(Gradients& g) {
    const memory::KindScope kind(memory::Kind::Gradients);
    const Chunk& chunk = *g.chunk;
    g.whole = at::zeros({chunk.length()}, chunk.part().options().dtype(options.sums));
    g.shard->gradients = g.whole.narrow(0, chunk.part_begin(), chunk.part_length());
    if (is_view)
      for (const Slot& slot : chunk.slots()) slot.parameter->value.mutable_grad() = view_of_slot(g.whole, slot);
  }

  at::TensorOptions whole_options(const Chunk& chunk) const {
    const at::TensorOptions of_values = chunk.part().options();
    return options.each_pass ? of_values : of_values.dtype(options.sums);
  }

  /// Moves a gradient from its parameter to its chunk.
  void take(Gradients& g, size_t slot_index) {
    const Slot& slot = g.chunk->slots()[slot_index];
    const at::Tensor gradient = slot.parameter->value.grad();
    if (is_view || !gradient.defined()) return;
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    if (!g.whole.defined()) g.whole = at::empty({g.chunk->length()}, whole_options(*g.chunk));
    const at::Tensor home = view_of_slot(g.whole, slot);
    if (zero <= 1 || g.filled[slot_index])
      home.add_(gradient);
    else
      home.copy_(gradient);
    g.filled[slot_index] = true;
    slot.parameter->value.mutable_grad().reset();
  }

  void arrived(Gradients& g, size_t slot) {
    require(!active || !g.left, "gradients", "a second gradient of ", g.chunk->slots()[slot].parameter->name,
            " in one pass, after its chunk has left: a parameter may not be used "
            "both inside and outside a recomputed block; set memory.recompute to none");
    take(g, slot);
    if (!active) return;
    --g.pending;
    while (next < chunks.size() && (chunks[next].late || chunks[next].pending <= 0)) {
      if (!chunks[next].late) launch(chunks[next]);
      ++next;
    }
  }

  void launch(Gradients& g) {
    g.left = true;
    for (size_t slot = 0; slot < g.filled.size(); ++slot) take(g, slot);
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    if (zero >= 2) {
      if (!g.whole.defined())
        g.whole = at::zeros({g.chunk->length()}, whole_options(*g.chunk));
      else
        clear_gaps(g);
      receive_all();  // so that no more than two chunks are whole
    }
    under_way.push_back(&g);
    if (zero == 0) {
      if (g.compression && !g.further.empty())
        comm::compressed_all_reduce(g.whole, *g.further.front(), *g.compression);
      else if (!g.further.empty())
        g.work = g.further.front()->all_reduce(g.whole, comm::Reduce::Sum);
      return;
    }
    const Chunk& chunk = *g.chunk;
    g.received = zero == 1 ? g.shard->gradients : at::empty({chunk.part_length()}, g.whole.options());
    g.work = g.compression ? comm::compressed_reduce_scatter(g.received, g.whole, chunk.sharers(), *g.compression)
                           : chunk.sharers().reduce_scatter(g.received, g.whole, comm::Reduce::Sum);
  }

  /// What no gradient came for, padding too.
  static void clear_gaps(Gradients& g) {
    int64_t end = 0;
    for (size_t i = 0; i < g.filled.size(); ++i) {
      const Slot& slot = g.chunk->slots()[i];
      if (!g.filled[i]) g.whole.narrow(0, slot.offset, slot.size).zero_();
      end = slot.offset + slot.size;
    }
    g.whole.narrow(0, end, g.chunk->length() - end).zero_();
  }

  /// Waits for what launch() began, and sums it further where there are others.
  void receive(Gradients& g) {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    g.work.wait();
    at::Tensor& sum = zero == 0 ? g.whole : g.received;
    for (size_t i = zero == 0 ? 1 : 0; i < g.further.size(); ++i)
      g.further[i]->all_reduce(sum, comm::Reduce::Sum).wait();
    if (zero >= 2) {
      g.whole.reset();
      std::fill(g.filled.begin(), g.filled.end(), false);
      if (g.shard->gradients.defined())
        g.shard->gradients.add_(g.received);
      else
        g.shard->gradients = g.received.to(options.sums);
    }
    g.received.reset();
  }

  void receive_all() {
    for (Gradients* g : under_way) receive(*g);
    under_way.clear();
  }

  void finish() {
    if (!active) return;
    for (Gradients& g : chunks)
      if (!g.late && !g.left) launch(g);
    for (Gradients& g : chunks)
      if (g.late) launch(g);
    receive_all();
    active = false;
  }

  memory::ChunkStore& store;
  GradientOptions options;
  int zero;
  bool alone = true;    // no chunk has a peer: nothing will ever leave
  bool is_view = true;  // gradients of parameters are views of whole chunks
  bool active = false;
  std::vector<Gradients> chunks;  // the last first
  size_t next = 0;                // first that has not left
  std::vector<Gradients*> under_way;
};

namespace {

template <class Arrived>
struct Hook : torch::autograd::PostAccumulateGradHook {
  explicit Hook(Arrived arrived) : arrived(std::move(arrived)) {}
  void operator()(const torch::autograd::Variable&) override { arrived(); }
  Arrived arrived;
};

template <class Arrived>
std::unique_ptr<torch::autograd::PostAccumulateGradHook> make_hook(Arrived arrived) {
  return std::make_unique<Hook<Arrived>>(std::move(arrived));
}

}  // namespace

GradientReducer::GradientReducer(memory::ChunkStore& store, const GradientOptions& options)
    : state_(std::make_shared<State>(store, options)) {
  if (state_->alone && state_->is_view) return;  // no hooks, no cost
  for (size_t i = 0; i < state_->chunks.size(); ++i) {
    const auto& slots = state_->chunks[i].chunk->slots();
    for (size_t slot = 0; slot < slots.size(); ++slot)
      torch::autograd::impl::set_post_acc_grad_hooks(slots[slot].parameter->value,
                                                     make_hook([state = std::weak_ptr<State>(state_), i, slot] {
                                                       if (auto alive = state.lock())
                                                         alive->arrived(alive->chunks[i], slot);
                                                     }));
  }
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::zero() {
  State& s = *state_;
  s.active = false;
  s.under_way.clear();
  for (Gradients& g : s.chunks) {
    if (s.zero <= 1) {
      ops::zero_(g.whole);
    } else {
      g.whole.reset();
      g.shard->gradients.reset();
    }
    g.received.reset();
    std::fill(g.filled.begin(), g.filled.end(), false);
    if (s.is_view) continue;
    for (const Slot& slot : g.chunk->slots()) slot.parameter->value.mutable_grad().reset();
  }
}

void GradientReducer::begin(bool last) {
  State& s = *state_;
  s.store.rethrow();
  if (s.alone && s.is_view) return;
  if (!last && !s.options.each_pass) return;
  s.finish();  // of the pass before
  s.active = true;
  s.next = 0;
  for (Gradients& g : s.chunks) {
    g.pending = static_cast<int64_t>(g.filled.size());
    g.left = false;
  }
}

void GradientReducer::finish() {
  state_->finish();
  state_->store.rethrow();
}

}  // namespace colossal::parallel
