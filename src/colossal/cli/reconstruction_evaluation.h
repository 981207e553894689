// How well an autoencoder reconstructs the pictures of a folder.
//
//   colossal evaluate --from runs/vae-shapes --reconstruct drawn --json   {"psnr": 31.2, "ssim": 0.95, "pictures": 9}
#pragma once
#include <string>

#include "colossal/cli/model_options.h"

namespace colossal::cli {

/// Encodes each picture of `folder` and of the folders in it, decodes the mean of its latent, and prints the means over
/// the pictures of evaluate::peak_signal_to_noise() and evaluate::structural_similarity(), of pixels of 8 bits. A
/// picture is not resampled: its middle is taken, with the largest sides that the autoencoder divides into cells.
/// Errors ("evaluate"): a model that does not encode pictures in color; a folder without pictures; a picture with a
/// side of fewer pixels than a cell or than 11. Errors of data::decode_picture().
int evaluate_reconstruction(const std::string& folder, bool as_json, const LoadedModel& loaded);

}  // namespace colossal::cli
