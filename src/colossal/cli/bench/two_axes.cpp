#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <chrono>

#include "colossal/base/error.h"
#include "colossal/cli/bench/diffusion_rows.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/nn/batch_step.h"

namespace colossal::cli {
namespace {

constexpr int64_t kFramesOfRank = 2, kPlacesOfRank = 4, kWidthOfHead = 4;
constexpr std::chrono::minutes kPatienceWithPairs{5};  // because many threads may share few cores

/// A pair of blocks and the clip that it reads.
struct Pair {
  explicit Pair(int64_t ranks) : frames(kFramesOfRank * ranks), places(kPlacesOfRank * ranks) {
    shape = models::built_in().resolve(
        {.name = "stdit3-tiny",
         .hidden = kWidthOfHead * ranks,
         .layers = 2,
         .heads = ranks,
         .own = models::own_keys({concat("frames=", frames), "height=1", concat("width=", places), "patch=1"})});
  }
  int64_t tokens() const { return frames * places; }

  int64_t frames, places;
  models::ModelShape shape;
};

/// Returns the elements that all ranks together send in a pass of the pair.
int64_t elements_of_pair(const Pair& pair, int64_t ranks, const std::string& mode) {
  const int64_t state = pair.tokens() * pair.shape.hidden;
  if (mode == "dsp") return 2 * (ranks - 1) * state / ranks;      // input and output of attention over places
  if (mode == "ulysses") return 4 * (ranks - 1) * state / ranks;  // its queries, keys, values and result
  require(mode == "ring", "bench", "the mode must be dsp, ulysses or ring: got ", mode);
  return 2 * (ranks - 1) * state;  // keys and values, to every other rank
}

}  // namespace

std::vector<DiffusionRow> two_axes_mode(int64_t ranks, const std::string& mode) {
  const Pair pair(ranks);
  const int64_t formula = elements_of_pair(pair, ranks, mode);
  const tensor::Batch clip = models::example_noised(pair.shape, 1).map([](const tensor::Field& field) {
    return at::zeros(field.tensor.sizes(), field.tensor.scalar_type());
  });
  std::atomic<int64_t> sent = 0;
  const auto run = [&](comm::World& world) {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    distributed::ParallelConfig layout;
    layout.sequence = {.size = ranks, .mode = mode};
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(mesh, layout, pair.shape, {}, {});
    const double before = world.traffic().total().elements;
    // Without the norm, because the end of a model gathers its prediction on every rank.
    model.everywhere_before_norm(
        nn::step_of(clip), [](int, const models::States& end, const nn::ForwardContext&) { return end.at(0); },
        at::empty({0}));
    sent += static_cast<int64_t>(world.traffic().total().elements - before);
  };
  comm::run_ranks(static_cast<int>(ranks), run, {.watchdog = kPatienceWithPairs});
  return {{ranks, mode, concat("STDiT pair, ", pair.frames, " frames of ", pair.places, " places"), sent, formula}};
}

}  // namespace colossal::cli
