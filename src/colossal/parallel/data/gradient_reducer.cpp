#include "colossal/parallel/data/gradient_reducer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace colossal::parallel {

struct GradientReducer::State {
  State(nn::FlatParameters& flat, comm::Mesh& mesh) : flat(flat) {
    for (const nn::FlatBucket& bucket : flat.buckets()) {
      std::vector<std::string> axes{"data"};
      axes.insert(axes.end(), bucket.gradient_axes.begin(), bucket.gradient_axes.end());
      groups.push_back(bucket.copies.empty() ? &mesh.group(axes) : &mesh.among(axes, "pipeline", bucket.copies));
      alone = alone && groups.back()->size() == 1;
      (bucket.copies.empty() ? early : late).push_back(groups.size() - 1);
    }
  }

  void arrived(size_t bucket) {
    if (!active) return;
    --pending[bucket];
    while (next < early.size() && pending[early[next]] <= 0) launch(early[next++]);
  }
  void launch(size_t bucket) { works.push_back(groups[bucket]->all_reduce(flat.buckets()[bucket].gradients, comm::Reduce::Sum)); }

  nn::FlatParameters& flat;
  std::vector<comm::Group*> groups;  // one a bucket
  bool alone = true;                 // no bucket has a peer: nothing will ever leave
  bool active = false;
  // Copies in other stages come to their last gradient at other times, and wait for this rank's transfers before: a collective that blocks, as
  // small ones may, must not stand in the way of those.
  std::vector<size_t> early, late;  // buckets that may leave while backward runs, and those that leave in finish()
  size_t next = 0;                  // first of `early` that has not left
  std::vector<int64_t> pending;   // gradients each bucket still waits for
  std::vector<comm::Work> works;
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

GradientReducer::GradientReducer(nn::FlatParameters& flat, comm::Mesh& mesh)
    : state_(std::make_shared<State>(flat, mesh)) {
  if (state_->alone) return;  // no hooks, no cost
  for (size_t b = 0; b < flat.buckets().size(); ++b) {
    for (const nn::FlatSlot& slot : flat.buckets()[b].slots) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          slot.parameter->value, make_hook([state = std::weak_ptr<State>(state_), b] {
            if (auto alive = state.lock()) alive->arrived(b);
          }));
    }
  }
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::begin() {
  State& s = *state_;
  if (s.alone) return;
  s.active = true;
  s.next = 0;
  s.pending.clear();
  for (const nn::FlatBucket& bucket : s.flat.buckets()) s.pending.push_back(bucket.slots.size());
}

void GradientReducer::finish() {
  State& s = *state_;
  if (!s.active) return;
  while (s.next < s.early.size()) s.launch(s.early[s.next++]);
  for (const size_t bucket : s.late) s.launch(bucket);
  for (comm::Work& work : s.works) work.wait();
  s.works.clear();
  s.active = false;
}

}  // namespace colossal::parallel
