#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

#include "colossal/run/objectives/diffusion/diffusion_keys.h"

namespace colossal::run {

void ReconstructionKeys::fields(Fields& f) {
  f.number("l1", l1, "", "weight of the mean distance of pixels, in [-1, 1]", 0);
  f.number("kl", kl, "",
           "weight of the divergence of latents from standard normal numbers; 0 = latents may spread freely", 0);
  f.number("lpips", lpips, "", "weight of LPIPS, the distance of features of VGG16 (1801.03924); 0 = off", 0);
  f.text("lpips_from", lpips_from,
         "folder with the weights of LPIPS as safetensors: torchvision's VGG16 and the layers lin0 to lin4 of lpips");
  f.number("gan", gan, "",
           "weight of the loss by which a discriminator judges reconstructions; 0 = no discriminator is trained", 0);
  f.integer("gan_start", gan_start, "steps",
            "first steps of a run, in which the discriminator has no effect and does "
            "not train");
}

void DiscriminatorKeys::fields(Fields& f) {
  f.text("name", name, "preset of the discriminator that reconstruction.gan trains, from random weights");
  f.rest(own);
}

bool DiscriminatorKeys::operator==(const DiscriminatorKeys& other) const { return to_toml(*this) == to_toml(other); }

// The objective diffusion has the same keys.
void ReconstructionDataKeys::fields(Fields& f) {
  f.integers("size", size, "pixels", "width and height of pictures; empty = those of the model", 1, 65535);
  f.flag("mirror", mirror, "show every second picture mirrored, on average");
  show_clip_keys(f, frames, keep, batch_sizes, fps);
}

}  // namespace colossal::run
