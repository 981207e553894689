#include "colossal/diffusion/draw_options.h"

#include <charconv>

#include "colossal/base/error.h"

namespace colossal::diffusion {

constexpr int64_t kMaxPictures = 1 << 20, kMaxSide = 1 << 16, kMaxFrames = 1 << 20;
constexpr double kMaxRate = 1000;

void DrawOptions::fields(Fields& f) {
  f.text("prompt", prompt, "caption of the picture, for a model that reads text");
  f.text("negative", negative, "caption of what the picture shall not show");
  f.text("class", drawn, "name or number of the class to draw, for a model of classes");
  f.text("size", size, "width and height in pixels, such as 512x512; default: those of the model");
  f.integer("count", count, "pictures", "number of pictures; picture k, from 0, has the seed + k", 1, kMaxPictures);
  f.integer("seed", seed, "", "seed of the noise");
  f.integer("steps", steps, "levels", "noise levels that the sampler visits", 1);
  f.text("sampler", sampler,
         "ddpm, ddim, pndm, euler, euler-ancestral, heun, dpm++2m, dpm++2m-sde, unipc or flow; default: that of the "
         "folder; of a run flow for a flow, else ddim");
  f.text("spacing", spacing, "how the noise levels are spread: leading, trailing or linspace; default: the sampler's");
  f.flag("karras", karras, "space the deviations of the noise as in 2206.00364");
  f.number("eta", eta, "", "ddim: share of the noise of ddpm that each step adds", 0, 1);
  f.number("guidance", guidance, "", "weight of classifier-free guidance; 1 = none, 0 = that of the model", 0);
  f.number("rescale", rescale, "", "share of the deviation that guidance changed which is given back", 0, 1);
  f.integer("clip-skip", clip_skip, "blocks", "last blocks of the text encoder that are left out", 0, 100);
  f.text("image", image, "PNG or JPEG file from which drawing begins; of a clip, its first frame");
  f.number("strength", strength, "of the steps", "with image: share of the steps that run; 1 = all, from noise alone",
           0, 1);
  f.text("mask", mask, "with image: PNG or JPEG file of its size; what is white there is painted anew");
  f.text("control-image", control_image, "PNG or JPEG file that the ControlNet of --control follows, such as outlines");
  f.text("ip-image", ip_image, "PNG or JPEG file that the pictures shall resemble, for the IP-adapter of --ip");
  f.flag("tiles", tiles,
         "decode and encode large pictures in blended tiles, as other programs do: approximate, where the default is "
         "exact");
  f.integer("frames", frames, "frames", "of a clip; 0 = those for which the model is made", 0, kMaxFrames);
  f.number("fps", fps, "frames/s", "rate of a clip, which the model is told and the file has; 0 = 24", 0, kMaxRate);
  f.text("last", last, "with image, of a clip: PNG or JPEG file of the last frame; image is then the first one");
  f.text(
      "approximate", approximate,
      "pab = reuse attention in the middle of the steps (pyramid attention broadcast, 2408.12588), for a model whose "
      "blocks attend over one of two axes; default: exact");
}

ops::PictureSize DrawOptions::pixels() const {
  if (size.empty()) return {};
  int64_t width = 0, height = 0;
  const char* const end = size.data() + size.size();
  const auto [first, failed] = std::from_chars(size.data(), end, width);
  bool is_size = failed == std::errc() && first != end && *first == 'x';
  if (is_size) {
    const auto [last, failed_too] = std::from_chars(first + 1, end, height);
    is_size = failed_too == std::errc() && last == end;
  }
  require(is_size && width > 0 && height > 0 && width <= kMaxSide && height <= kMaxSide, "draw",
          "size must be a width and a height in pixels, such as 512x512, of at most ", kMaxSide, ": got ", size);
  return {height, width};
}

void DrawOptions::check(const std::string& where) const {
  const auto in = [&](bool fits, const char* name, const char* rule, const auto& value) {
    require(fits, "draw", where, name, " must be ", rule, ": got ", value);
  };
  in(count >= 1 && count <= kMaxPictures, "count", "between 1 and 2^20", count);
  in(steps >= 1, "steps", "at least 1", steps);
  in(eta >= 0 && eta <= 1, "eta", "between 0 and 1", eta);
  in(guidance >= 0, "guidance", "at least 0", guidance);
  in(rescale >= 0 && rescale <= 1, "rescale", "between 0 and 1", rescale);
  in(clip_skip >= 0, "clip-skip", "at least 0", clip_skip);
  in(frames >= 0 && frames <= kMaxFrames, "frames", "between 0 and 2^20", frames);
  in(fps >= 0 && fps <= kMaxRate, "fps", "between 0 and 1000", fps);
  in(strength > 0 && strength <= 1, "strength", "in (0, 1]", strength);
  require(prompt.empty() != drawn.empty(), "draw", where,
          drawn.empty() ? "what to draw must be given: name a caption with --prompt, or a class with --class"
                        : "a picture must have a prompt or a class: got both");
  require(mask.empty() || !image.empty(), "draw", where, "a mask must come with the image that it covers: got ", mask,
          "; name it with --image");
  require(last.empty() || !image.empty(), "draw", where, "a last frame must come with the first one: got ", last,
          "; name the first one with --image");
  require(approximate.empty() || approximate == "pab", "draw", where, "approximate must be pab: got ", approximate,
          "; leave it out to draw exactly");
  try {
    pixels();
  } catch (const Error& error) {
    throw Error("draw", where + error.message());
  }
}

}  // namespace colossal::diffusion
