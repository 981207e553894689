#include "colossal/cli/draw_clips.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/machine.h"
#include "colossal/base/number.h"
#include "colossal/cli/approximate_drawing.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/text_lines.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/diffusion/clip_length.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/given_picture.h"
#include "colossal/diffusion/told_captions.h"

namespace colossal::cli {
namespace {

constexpr const char *kPng = ".png", *kGif = ".gif", *kMp4 = ".mp4";

bool is_png(const std::string& path) { return has_ending(path, kPng); }

double rate_of_clip(const diffusion::DrawOptions& options) {
  return options.fps > 0 ? options.fps : diffusion::kDefaultRate;
}

/// Returns the size of the frames in pixels: that of the given image, if there is no --size.
ops::PictureSize size_of_frames(const run::PipelineSource& source, const diffusion::DrawOptions& options,
                                const ops::PictureSize& cells) {
  if (options.image.empty() || !options.size.empty())
    return {cells.height * source.factor, cells.width * source.factor};
  return diffusion::size_of_given_picture(options.image, source.factor * source.sizes.side);
}

/// Refuses sides that MP4 does not have, with the nearest even ones that the model draws.
void check_even_sides(const ops::PictureSize& size, int64_t grid) {
  const int64_t even = std::lcm<int64_t>(2, grid);
  require(size.width % 2 == 0 && size.height % 2 == 0, "draw", "the sides of an .mp4 file must be even: got ",
          size.width, "x", size.height, "; set --size ", data::nearest_multiple(size.width, even), "x",
          data::nearest_multiple(size.height, even), ", or write .gif or .y4m");
}

}  // namespace

void check_drawn_name(const std::string& to) {
  const std::string ending = std::filesystem::path(to).extension();
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const bool is_like_file =
      ending.size() > 1 && is_letter(ending[1]) &&
      std::all_of(ending.begin() + 1, ending.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
  std::error_code ignored;
  require(!is_like_file || names_drawn_file(to) || std::filesystem::is_directory(to, ignored), "draw",
          "--to must be a .png, .gif, .y4m or .mp4 file, or a folder: got ", to, ", of the unknown ending ", ending,
          "; write a folder of that name as ", to, "/");
}

bool names_drawn_file(const std::string& to) { return is_png(to) || data::has_clip_ending(to); }

std::string numbered_path(const std::string& folder, int64_t number, int64_t seed, const char* ending) {
  std::string digits = std::to_string(number);
  digits.insert(0, digits.size() < 4 ? 4 - digits.size() : 0, '0');
  return concat(folder, folder.ends_with('/') ? "" : "/", digits, "-", seed, ending);
}

void check_drawn_path(const std::string& to, const run::PipelineSource& source, const diffusion::DrawOptions& options) {
  const diffusion::DrawnParts parts = diffusion::parts_of_drawing(source, options);
  const int64_t frames = parts.length.frames;
  require(frames > 0 || !data::has_clip_ending(to), "draw", "--to must be a .png file or a folder for pictures: got ",
          to, "; a model of clips writes .gif, .y4m and .mp4");
  if (frames == 0 || (frames == 1 && is_png(to))) {
    if (is_png(to)) AtomicFile probe(to);  // without commit() nothing is left of it
    return;
  }
  require(!is_png(to), "draw", "--to must be a .gif, .y4m or .mp4 file, or a folder, for a clip of ", frames,
          " frames: got ", to, "; name it .gif");
  const ops::PictureSize size = size_of_frames(source, options, parts.cells);
  if (has_ending(to, kMp4)) check_even_sides(size, source.factor * source.sizes.side);
  const data::ClipFormat format{.width = size.width, .height = size.height, .fps = rate_of_clip(options)};
  if (data::has_clip_ending(to))
    data::ClipWriter(to, format);  // without finish() nothing is left of it
  else
    data::encode_gif(format, [](std::string_view) {});
}

std::string frame_flags(const diffusion::DrawOptions& options) {
  return concat(options.frames > 0 ? concat(" --frames ", options.frames) : "",
                options.fps > 0 ? concat(" --fps ", print_number(options.fps)) : "");
}

void decode_frames(const diffusion::PipelineParts& parts, comm::Mesh& mesh, const diffusion::ClipToDecode& clip,
                   const diffusion::DrawOptions& options,
                   const std::function<void(diffusion::DrawnPicture& frame)>& take) {
  diffusion::DrawnPicture frame{.seed = clip.seed, .frames = clip.frames, .fps = rate_of_clip(options)};
  diffusion::decode_clip(parts, mesh, clip, [&](const data::Picture& pixels) {
    frame.pixels = pixels;
    take(frame);
    ++frame.frame;
  });
}

void ClipFiles::write(const diffusion::DrawnPicture& frame) {
  if (frame.frame == 0) {
    path_ = names_drawn_file(to_) ? to_ : numbered_path(to_, written_, frame.seed, kGif);
    if (is_png(path_))
      write_file(path_, data::encode_png(frame.pixels));
    else
      clip_ = std::make_unique<data::ClipWriter>(
          path_, data::ClipFormat{.width = frame.pixels.width, .height = frame.pixels.height, .fps = frame.fps});
  }
  if (clip_) clip_->add(frame.pixels);
  if (frame.frame + 1 == frame.frames) finish(frame);
}

void ClipFiles::finish(const diffusion::DrawnPicture& last) {
  if (clip_) clip_->finish();
  clip_.reset();
  ++written_;
  if (!as_json_) {
    std::printf("%s\n", path_.c_str());
    if (!last.note.empty()) say(concat(path_, ": ", last.note));
    if (last.psnr) std::printf("%s\n", comparison_line(last).c_str());
  } else {
    nlohmann::ordered_json line{{"path", path_},           {"seed", last.seed},
                                {"sampler", last.sampler}, {"steps", last.steps},
                                {"seconds", last.seconds}, {"peak_bytes", peak_resident_bytes()},
                                {"frames", last.frames},   {"fps", last.fps}};
    if (!last.note.empty()) line["note"] = last.note;
    if (last.psnr) line["psnr"] = *last.psnr;
    std::puts(json_line(line).c_str());
  }
  std::fflush(stdout);
}

}  // namespace colossal::cli
