#include "colossal/parallel/data/gradient_reducer.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using memory::Chunk;

/// number of chunks that stay whole before they are sent: those that last received gradients. Adjacent chunks receive
/// gradients alternately
constexpr size_t kWhole = 2;

/// The gradients of one chunk, until they are sent.
struct Departure {
  Chunk* chunk;
  std::unique_ptr<ChunkGradients> gradients;
  std::string model;
  /// true if the chunk is sent in finish(). Replicas in other stages finish their last gradient at other times, and
  /// first wait for this rank's transfers. A collective that blocks, as small ones may, must not delay these
  /// transfers. Parameters that blocks share are sent in finish() too, because it is unknown which gradient is their
  /// last one
  bool late;
  int64_t pending = 0;  // number of gradients still missing in this pass
  bool left = false;
  bool again = false;  // gradients arrived after the chunk was sent: finish() sends their sum, too
};

std::string described(const std::string& model) { return model.empty() ? "the main model" : model; }

}  // namespace

struct GradientReducer::State {
  State(memory::ChunkStore& store, const GradientOptions& options)
      : store(store), options(options), sharing(store.options().sharing) {
    for (const auto& chunk : store.chunks()) {
      if (!chunk->trained()) continue;
      Summands summands = Summands::of(store, *chunk);
      const bool are_others = summands.are_others();
      auto gradients =
          make_chunk_gradients(store.options(), *chunk, store.shards_of(*chunk), std::move(summands), options);
      needs_nobody = needs_nobody && !are_others && gradients->are_in_place();
      const nn::Parameter& first = *chunk->slots().front().parameter;
      const bool late = first.is_shared || first.spec.stages.size() > 1;
      chunks.insert(chunks.begin(), Departure{chunk.get(), std::move(gradients), first.model, late});
    }
  }

  void arrived(Departure& d, size_t slot) {
    require(d.model == model, "gradients",
            "a pass through one model must make gradients of that model alone: got one of ",
            d.chunk->slots()[slot].parameter->name, " in a pass through ", described(model),
            "; detach what the loss takes from other models");
    came_for(d);
    d.gradients->take(slot);
    --d.pending;
    d.again = d.again || (active && d.left);
    if (!active) {
      if (d.pending == 0 && options.sets_aside) set_aside(d);
      return;
    }
    while (next < of_pass.size() && (of_pass[next]->late || of_pass[next]->pending <= 0)) {
      if (!of_pass[next]->late) launch(*of_pass[next]);
      ++next;
    }
  }

  void launch(Departure& d) {
    d.left = true;
    std::erase(whole, &d);
    for (size_t slot = 0; slot < d.chunk->slots().size(); ++slot) d.gradients->take(slot);
    if (sharing.gradients) receive_all();  // limits whole chunks to two
    under_way.push_back(&d);
    d.gradients->send();
  }

  void receive_all() {
    for (Departure* d : under_way) {
      d->gradients->receive();
      // The store records a disk error of one rank until the ranks next agree, because the others already proceed to
      // the next chunk.
      store.attempt([&] { d->gradients->keep(last); });
    }
    under_way.clear();
  }

  /// Marks the gradients of all chunks of the model as missing.
  void begin(const std::string& of_model) {
    model = of_model;
    of_pass.clear();
    for (Departure& d : chunks) {
      if (d.model != model) continue;
      of_pass.push_back(&d);
      d.pending = static_cast<int64_t>(d.chunk->slots().size());
      d.left = d.again = false;
    }
  }

  void came_for(Departure& d) {
    if (!options.sets_aside) return;
    std::erase(whole, &d);
    while (whole.size() >= kWhole) set_aside(*whole.front());
    whole.push_back(&d);
  }

  void set_aside(Departure& d) {
    std::erase(whole, &d);
    store.attempt([&] { d.gradients->set_aside(); });  // gradients stay whole on failure
  }

  void finish() {
    if (!active) return;
    for (Departure* d : of_pass)
      if (!d->late && !d->left) launch(*d);
    for (Departure* d : of_pass)
      if (d->late) launch(*d);
    receive_all();
    for (Departure* d : of_pass)
      if (d->again) launch(*d);
    receive_all();
    for (Departure* d : of_pass) d->gradients->end_pass();
    active = false;
  }

  /// Returns the ranks that have other tokens of the rows of this one; null = there are none.
  comm::Group* with_other_tokens(const Chunk& chunk) const {
    comm::Mesh& mesh = store.mesh();
    const std::vector<std::string> rows = mesh.coordinates().row_axes();
    std::vector<std::string> axes = chunk.slots().front().parameter->spec.gradient_axes;
    std::erase_if(axes, [&](const auto& axis) { return std::find(rows.begin(), rows.end(), axis) != rows.end(); });
    return mesh.coordinates().size(axes) > 1 ? &mesh.group(axes) : nullptr;
  }

  memory::ChunkStore& store;
  GradientOptions options;
  memory::Sharing sharing;
  bool needs_nobody = true;           // true if no chunk has a peer and autograd adds in place, so that nothing is
                                      // ever sent
  bool active = false, last = false;  // last: last pass of the step
  std::vector<Departure> chunks;      // chunks, the last one first
  std::string model;                  // model that the pass uses
  std::vector<Departure*> of_pass;    // chunks of the pass
  size_t next = 0;                    // index in of_pass of the first chunk that is not sent
  std::vector<Departure*> whole;      // chunks that last received gradients, the latest at the end; none is sent
  std::vector<Departure*> under_way;
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
  if (state_->needs_nobody) return;  // no hooks, so no cost
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
  state_->active = false;
  state_->under_way.clear();
  state_->whole.clear();
  for (Departure& d : state_->chunks) d.gradients->zero();
}

void GradientReducer::add_to_sums(const std::string& model) {
  state_->model = model;  // set here because recorded passes make gradients before begin()
  for (Departure& d : state_->chunks)
    if (d.model == model) d.gradients->add_to_sum();
}

void GradientReducer::begin(bool last, const std::string& model) {
  State& s = *state_;
  if (!s.store.takes_part()) s.store.rethrow();
  if (s.needs_nobody) return;
  s.finish();  // finishes the previous pass
  s.begin(model);
  if (!last && !s.options.each_pass) return;
  s.active = true;
  s.last = last;
  s.next = 0;
}

void GradientReducer::begin_rows(const std::string& model) {
  State& s = *state_;
  s.finish();
  for (Departure& d : s.chunks)
    if (d.model == model) d.gradients->begin_rows();
}

void GradientReducer::begin_row(const std::string& model) {
  if (!state_->store.takes_part()) state_->store.rethrow();
  state_->begin(model);  // not active: nothing is sent
}

at::Tensor GradientReducer::row_squares() {
  at::Tensor sum;
  for (Departure* d : state_->of_pass) {
    const at::Tensor squares = d->gradients->row_squares(state_->with_other_tokens(*d->chunk));
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum;
}

void GradientReducer::keep_row(double factor) {
  for (Departure* d : state_->of_pass) {
    // Each of these ranks has the whole gradient now, and finish() sums over them: one of them counts.
    const comm::Group* const tokens = state_->with_other_tokens(*d->chunk);
    d->gradients->keep_row(tokens && tokens->rank() > 0 ? 0 : factor);
  }
}

void GradientReducer::finish_rows() {
  for (Departure* d : state_->of_pass) d->gradients->take_rows();
  begin(/*last=*/true, state_->model);
}

void GradientReducer::finish() {
  state_->finish();
  if (!state_->store.takes_part()) state_->store.rethrow();
}

void GradientReducer::complete() {
  State& s = *state_;
  for (Departure& d : s.chunks) s.store.attempt([&] { d.gradients->complete(); });
}

int64_t GradientReducer::bytes_returned() const {
  int64_t bytes = 0;
  for (const Departure& d : state_->chunks) bytes += d.gradients->bytes_returned();
  return bytes;
}

}  // namespace colossal::parallel
