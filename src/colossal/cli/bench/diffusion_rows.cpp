#include "colossal/cli/bench/diffusion_rows.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/comm/mesh.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/row_group.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::cli {

std::vector<DiffusionRow> rows_mode(int64_t ranks) {
  constexpr int64_t kCells = 128;  // a cell has 8 pixels a side
  const models::ModelShape shape = models::built_in().resolve({.name = "autoencoder-kl"});
  const auto sizes = shape.own.as<models::AutoencoderKlSizes>();
  nn::Parameters parameters({}, {.dtype = at::kFloat, .device = at::kMeta});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  const at::Tensor latent =
      at::empty({1, sizes.latent_channels, kCells, kCells}, at::TensorOptions(at::kFloat).device(at::kMeta));
  double sent = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto world = comm::make_simulated_world(rank, static_cast<int>(ranks));
    comm::Mesh mesh(*world, {{"rows", static_cast<int>(ranks)}});
    distributed::RowGroup group(mesh.all());
    models::decoded_by_rows(model, parameters, latent, {.ranks = &group});
    sent += world->traffic().total().elements;
  }
  return {{ranks, "rows", "decode 1024 px", std::llround(sent),
           models::decoding_traffic(sizes, {kCells, kCells}, ranks).total()}};
}

}  // namespace colossal::cli
