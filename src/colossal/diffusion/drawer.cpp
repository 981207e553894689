#include "colossal/diffusion/drawer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "colossal/base/checksum.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/diffusion/decoded_clip.h"
#include "colossal/diffusion/drawn_class.h"
#include "colossal/diffusion/given_picture.h"
#include "colossal/diffusion/told_captions.h"
#include "colossal/models/conditions.h"
#include "colossal/models/text_encoder.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/program.h"

namespace colossal::diffusion {
namespace {

/// Pictures of this many cells together are drawn at once, at most kMostAtOnce.
constexpr int64_t kCellsAtOnce = 4096, kMostAtOnce = 16;

int64_t pictures_at_once(const ops::PictureSize& cells, const ClipLength& length) {
  const int64_t of_one = cells.pixels() * std::max<int64_t>(1, length.latents);
  return std::clamp<int64_t>(kCellsAtOnce / std::max<int64_t>(1, of_one), 1, kMostAtOnce);
}

double guidance_of(const run::PipelineSource& source, const DrawOptions& options) {
  return options.guidance == 0 ? source.keys.guidance : options.guidance;
}

int64_t class_of(const run::PipelineSource& source, const DrawOptions& options) {
  return source.reads_text() ? 0 : drawn_class(options.drawn, source.class_names, source.sizes.classes);
}

/// Returns the options of the sampler, for pictures or frames of these cells.
run::GivenSampler sampler_of(const DrawOptions& options, const ops::PictureSize& cells, const ClipLength& length) {
  run::GivenSampler given = options.given();
  if (length.frames > 0) given.strength = 1;  // the image is a frame
  given.cells = cells;
  given.frames = std::max<int64_t>(1, length.latents);
  return given;
}

/// Returns true if clip-skip changes what the model reads: the states of an encoder of CLIP. FLUX reads a pooled state.
bool reads_clip_states(const run::PipelineSource& source) {
  for (size_t i = 0; i < source.captions.size(); ++i) {
    const std::string& encoder = source.captions[i].encoder;
    if (encoder.empty()) return true;  // the model has it within it
    if (source.sizes.captions.at(i).states != models::CaptionStates::None &&
        models::text_encoder_of(run::find_source(encoder, run::built_in()).shape).begins)
      return true;
  }
  return false;
}

/// Returns the pixels of which sides must be multiples.
int64_t grid_of(const run::PipelineSource& source) { return source.factor * source.sizes.side; }

/// Returns the cells of a side for which the model has positions; 0 = any number, or a model of a user's own program.
int64_t positions_of(const run::PipelineSource& source) {
  try {
    return run::find_source(source.model, run::built_in()).shape.part<models::PositionTable>().cells;
  } catch (const Error&) {  // loading the model says what is wrong with it
    return 0;
  }
}

/// Checks that the model has positions for pictures of a size.
void check_positions(const run::PipelineSource& source, const ops::PictureSize& cells) {
  if (source.model.empty()) return;  // a run that trains it
  const int64_t most = positions_of(source), pixels = most * source.factor;
  require(most == 0 || std::max(cells.height, cells.width) <= most, "draw", "the sides of size must be at most ",
          pixels, " pixels, for which the model has positions: got ", cells.width * source.factor, "x",
          cells.height * source.factor, "; choose a smaller size");
}

/// Returns the size in cells that the options ask for.
ops::PictureSize cells_of(const run::PipelineSource& source, const DrawOptions& options) {
  const ops::PictureSize pixels = options.pixels();
  if (pixels.pixels() == 0) return {source.sizes.height, source.sizes.width};
  const int64_t grid = grid_of(source);
  const ops::PictureSize near{data::nearest_multiple(pixels.height, grid), data::nearest_multiple(pixels.width, grid)};
  require(near == pixels, "draw", "the sides of size must be multiples of ", grid, " pixels: got ", options.size,
          "; the nearest is ", near.width, "x", near.height);
  const ops::PictureSize cells{pixels.height / source.factor, pixels.width / source.factor};
  const bool is_fixed = source.sizes.classes > 0;
  require(!is_fixed || cells == ops::PictureSize{source.sizes.height, source.sizes.width}, "draw",
          "the model draws pictures of ", source.sizes.width * source.factor, "x", source.sizes.height * source.factor,
          " only: got ", options.size, "; leave size out");
  check_positions(source, cells);
  return cells;
}

}  // namespace

/// What all pictures of a drawing share.
struct Drawer::Request {
  const DrawOptions& options;
  const GivenPictures& given;
  noise::SamplerPlan plan;
  ops::PictureSize cells;
  ClipLength length{};
  ToldCaptions captions{};
  at::Tensor picture, mask;  // [1, C, h, w] and [1, 1, h, w]
  at::Tensor beside;         // [1, DenoiserSizes::beside, h, w]
  std::vector<int64_t> given_frames{};
  at::Tensor given_clip{};  // [1, C, given_frames, h, w]
};

Drawer::Drawer(const run::PipelineSource& source, distributed::DistributedModel& model, PipelineParts& parts,
               comm::Mesh& mesh, std::string checksum)
    : source_(source), model_(model), parts_(parts), mesh_(mesh), checksum_(std::move(checksum)) {}

void Drawer::check(const run::PipelineSource& source, const DrawOptions& options, const GivenPictures& given) {
  require(options.prompt.empty() || source.reads_text(), "draw",
          "the model is told a class, not a prompt: got a prompt; name one of its ", source.sizes.classes,
          " classes with --class");
  require(options.drawn.empty() || !source.reads_text(), "draw",
          "the model reads a prompt, not a class: got the class ", options.drawn, "; describe it with --prompt");
  require(options.negative.empty() || source.reads_text(), "draw",
          "negative needs a model that reads a prompt: got one of classes; leave it out");
  require(options.clip_skip == 0 || source.reads_text(), "draw",
          "clip-skip needs a model that reads a prompt: got one of classes; leave it out");
  require(options.clip_skip == 0 || reads_clip_states(source), "draw",
          "clip-skip needs a model that reads the states of CLIP: got ", options.clip_skip,
          " for one that reads those of T5; leave it out");
  require(options.negative.empty() || !source.sizes.told_guidance, "draw",
          "negative needs a second pass a step, which a model that is told the weight of guidance does not have: got ",
          options.negative, "; leave it out");
  run::check_guidance(source, guidance_of(source, options), "draw");
  require(options.rescale == 0 || run::has_second_pass(source, guidance_of(source, options)), "draw",
          "rescale needs a second pass a step, whose guidance it gives back: got ", options.rescale,
          " for a drawing of one pass; leave it out");
  require(options.negative.empty() || guidance_of(source, options) != 1, "draw",
          "negative needs guidance, which leads away from it: got guidance 1; set another guidance, or leave it out");
  require(!options.tiles || source.has_latents(), "draw",
          "tiles need a model whose latents are decoded: got one that draws pixels; leave them out");
  require(source.sizes.beside == 0 || !options.mask.empty(), "draw",
          "the model paints inside a mask: got none; name the picture with --image and the mask with --mask");
  check_clip_options(source, options);
  require(options.approximate.empty() || source.has_two_axes, "draw",
          "approximate = pab needs a model with two axes, such as an STDiT: got one whose blocks attend over one "
          "sequence; leave it out");
  require(source.control.has_value() == !options.control_image.empty(), "draw",
          "control-image must come with a ControlNet, and a ControlNet with a control-image: got ",
          source.control ? "a ControlNet alone; name the picture that it follows"
                         : "an image alone; name the ControlNet with --control");
  require(source.image_prompt.has_value() == !options.ip_image.empty(), "draw",
          "ip-image must come with an IP-adapter, and an IP-adapter with an ip-image: got ",
          source.image_prompt ? "an IP-adapter alone; name the picture that it reads"
                              : "an image alone; name the IP-adapter with --ip");
  for (const auto& [name, bytes] : given.files) data::decode_picture(bytes, name);
  class_of(source, options);
  const ops::PictureSize cells = cells_of(source, options);
  const ClipLength length = clip_length(source, options.frames);
  run::plan_of(source, sampler_of(options, cells, length));
  if (!given.latents.defined()) return;
  std::vector<int64_t> wanted{options.count, source.sizes.channels, cells.height, cells.width};
  if (length.frames > 0) wanted.insert(wanted.begin() + 2, length.latents);
  require(given.latents.sizes() == at::IntArrayRef(wanted), "draw", "latents must have the sizes ",
          at::IntArrayRef(wanted), ", one for each of --count: got ", given.latents.sizes());
}

Drawer::Request Drawer::request_of(const DrawOptions& options, const GivenPictures& given) {
  check(source_, options, given);
  Request request{.options = options,
                  .given = given,
                  .cells = cells_of(source_, options),
                  .length = clip_length(source_, options.frames)};
  if (source_.reads_text())
    request.captions = read_captions(source_, parts_,
                                     {.prompt = options.prompt,
                                      .negative = options.negative,
                                      .clip_skip = options.clip_skip,
                                      .is_guided = run::has_second_pass(source_, guidance_of(source_, options)),
                                      .fps = options.fps,
                                      .frames = request.length.frames});
  if (request.length.frames > 0)
    read_frames(options, request);
  else
    read_image(options, request);
  read_control(options, request);
  read_image_prompt(options, request);
  request.plan = run::plan_of(source_, sampler_of(options, request.cells, request.length));
  return request;
}

/// Reads the picture from which the drawing begins and its mask, if there are some.
void Drawer::read_image(const DrawOptions& options, Request& request) {
  if (options.image.empty()) return;
  ops::PictureSize pixels = options.pixels();
  if (source_.sizes.classes > 0) pixels = {request.cells.height * source_.factor, request.cells.width * source_.factor};
  const GivenPicture picture =
      read_given_picture(options.image, options.mask, pixels, grid_of(source_), request.given.files);
  request.cells = {picture.size.height / source_.factor, picture.size.width / source_.factor};
  check_positions(source_, request.cells);
  comm::Group& all = mesh_.all();  // ranks that share the rows of the picture
  if (source_.sizes.beside > 0) {
    request.beside = at::cat({mask_of_cells(picture.mask, source_.factor).to(at::kFloat),
                              parts_.drawn(picture.pixels * (1 - picture.mask), options.tiles, &all).to(at::kFloat)},
                             1);
    if (options.strength < 1) request.picture = parts_.drawn(picture.pixels, options.tiles, &all);
    return;  // the model itself keeps what the mask does not cover
  }
  request.picture = parts_.drawn(picture.pixels, options.tiles, &all);
  if (picture.mask.defined()) request.mask = mask_of_cells(picture.mask, source_.factor);
}

/// Reads the picture that a ControlNet follows, if the model has one.
void Drawer::read_control(const DrawOptions& options, Request& request) {
  if (!source_.control) return;
  const ops::PictureSize pixels{request.cells.height * source_.factor, request.cells.width * source_.factor};
  const tensor::Field control =
      models::condition_field(read_control_picture(options.control_image, pixels, request.given.files));
  for (tensor::Batch* told : {&request.captions.told, &request.captions.untold})
    if (told->rows() > 0) told->add(models::kControl, control);
}

/// Reads the picture that the pictures shall resemble, if the model has an IP-adapter.
void Drawer::read_image_prompt(const DrawOptions& options, Request& request) {
  if (!source_.image_prompt) return;
  const std::string bytes = bytes_of_given_picture(options.ip_image, request.given.files);
  tell_embedding(parts_.embedding(bytes, options.ip_image), request.captions.told, request.captions.untold);
}

/// Reads the first and the last frame of clips, if they are given.
void Drawer::read_frames(const DrawOptions& options, Request& request) {
  std::vector<at::Tensor> frames;
  ops::PictureSize pixels = options.pixels();
  for (const std::string& file : {options.image, options.last}) {
    if (file.empty()) continue;
    const GivenPicture picture = read_given_picture(file, "", pixels, grid_of(source_), request.given.files);
    pixels = picture.size;  // that of the first frame
    request.given_frames.push_back(frames.empty() ? 0 : request.length.latents - 1);
    frames.push_back(parts_.drawn_frame(picture.pixels, options.tiles, &mesh_.all()));
  }
  if (frames.empty()) return;
  request.cells = {pixels.height / source_.factor, pixels.width / source_.factor};
  request.given_clip = at::stack(frames, 2);
}

void Drawer::draw(const DrawOptions& options, const GivenPictures& given,
                  const std::function<void(const DrawnPicture&)>& take) {
  const Request request = request_of(options, given);
  if (request.length.frames > 0) return draw_clips(request, take);
  const std::string sampler = run::options_of(source_, options.given()).sampler;
  const std::string note = options.tiles ? parts_.note_of_tiles(request.cells) : "";
  const int64_t at_once = pictures_at_once(request.cells, request.length) * mesh_.group("data").size();
  for (int64_t first = 0; first < options.count; first += at_once) {
    const int64_t count = std::min(at_once, options.count - first);
    const Stopwatch watch;
    const at::Tensor pictures = drawn_by_all(request, first, count);
    const double seconds = watch.seconds() / static_cast<double>(count);
    comm::agree(mesh_.all(), at::kCPU, [&] {  // a full disk of rank 0 must end the others, too
      for (int64_t i = 0; i < count && mesh_.world().rank() == 0; ++i) {
        const int64_t seed = options.seed + first + i;
        take({.png = data::encode_png(picture_of(pictures[i]),
                                      {{"parameters", parameters_of(options, seed, pictures[i])}}),
              .seed = seed,
              .sampler = sampler,
              .steps = options.steps,
              .seconds = seconds,
              .note = note});
      }
    });
  }
}

void Drawer::draw_clips(const Request& request, const std::function<void(const DrawnPicture&)>& take) {
  const DrawOptions& options = request.options;
  const int64_t at_once = pictures_at_once(request.cells, request.length) * mesh_.group("data").size();
  for (int64_t first = 0; first < options.count; first += at_once) {
    const int64_t count = std::min(at_once, options.count - first);
    const Stopwatch watch;
    const at::Tensor clips = drawn_by_all(request, first, count);
    const double seconds = watch.seconds() / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) {
      const Stopwatch decoding;
      DrawnPicture frame{.seed = options.seed + first + i,
                         .sampler = run::options_of(source_, options.given()).sampler,
                         .steps = options.steps,
                         .note = options.tiles ? parts_.note_of_tiles(request.cells) : "",
                         .frames = request.length.frames,
                         .fps = options.fps > 0 ? options.fps : kDefaultRate};
      const ClipToDecode clip{
          .clip = clips.narrow(0, i, 1), .frames = frame.frames, .in_tiles = options.tiles, .seed = frame.seed};
      try {
        decode_clip(parts_, mesh_, clip, [&](const data::Picture& pixels) {
          frame.pixels = pixels;
          frame.seconds = seconds + decoding.seconds();
          take(frame);
          ++frame.frame;
        });
      } catch (const DecodingFailed& failure) {  // with the clips after it
        throw DecodingFailed(failure.message(), clips.narrow(0, i, count - i).clone(), frame.seed);
      }
    }
  }
}

/// Draws and decodes a replica's share of the pictures, and gathers those of all. Clips are not decoded.
at::Tensor Drawer::drawn_by_all(const Request& request, int64_t first, int64_t count) {
  comm::Group& replicas = mesh_.group("data");
  const int64_t share = (count + replicas.size() - 1) / replicas.size();
  const DrawOptions& options = request.options;
  const auto of_all = [&](const at::Tensor& x) {
    std::vector<int64_t> sizes(static_cast<size_t>(x.defined() ? x.dim() : 0), -1);
    if (!sizes.empty()) sizes.front() = share;
    return x.defined() ? x.expand(sizes).contiguous() : x;
  };
  const auto repeated = [share](const tensor::Batch& row) {
    return tensor::joined_rows(std::vector(static_cast<size_t>(share), row));
  };
  Drawing drawing{.told = repeated(request.captions.told),
                  .untold = repeated(request.captions.untold),
                  .size = request.cells,
                  .frames = request.length.latents,
                  .guidance = guidance_of(source_, options),
                  .factor = source_.factor,
                  .rescale = options.rescale,
                  .pictures = of_all(request.picture),
                  .mask = of_all(request.mask),
                  .beside = of_all(request.beside),
                  .given_frames = request.given_frames,
                  .given = of_all(request.given_clip),
                  .stop_requested = request.given.stop_requested,
                  .halves = &mesh_.group(run::kGuidanceAxis)};
  if (!options.approximate.empty()) drawing.broadcast = AttentionBroadcast();
  std::vector<at::Tensor> starts;
  for (int64_t i = 0; i < share; ++i) {
    if (!source_.reads_text()) drawing.classes.push_back(class_of(source_, options));
    // The last replicas may have fewer; what they draw instead is not used.
    const int64_t picture = std::min(replicas.rank() * share + i, count - 1);
    drawing.seeds.push_back(static_cast<uint64_t>(options.seed + first + picture));
    if (request.given.latents.defined()) starts.push_back(request.given.latents[first + picture]);
  }
  if (!starts.empty()) drawing.start = at::stack(starts);
  const at::Tensor latents = diffusion::draw(model_, request.plan, drawing).contiguous();
  if (request.length.frames > 0) return gathered(latents, count);
  return decoded(latents, gathered(latents, count), options.seed + first, options.tiles);
}

/// Returns the pixels of `all` pictures, of which this replica drew `own`. Ranks that have nothing else to decode share
/// the rows of a picture: those of a replica, and all of them if there are fewer pictures than replicas.
at::Tensor Drawer::decoded(const at::Tensor& own, const at::Tensor& all, int64_t seed, bool in_tiles) {
  const bool is_shared = !in_tiles && all.size(0) < mesh_.group("data").size();
  comm::Group& sharing = is_shared ? mesh_.all() : mesh_.all_but("data");
  at::Tensor pixels;
  std::optional<Error> failed;
  try {
    failed = comm::agreed_error(
        mesh_.all(), at::kCPU, [&] { pixels = parts_.pixels(is_shared ? all : own, in_tiles, &sharing).contiguous(); });
  } catch (const Error& error) {  // ranks that share rows cannot agree after one of them has failed
    failed = error;
  }
  if (failed) throw DecodingFailed(failed->message(), all, seed);
  return is_shared ? pixels : gathered(pixels, all.size(0));
}

/// Returns the first `count` rows of all replicas, each of which has as many.
at::Tensor Drawer::gathered(const at::Tensor& own, int64_t count) const {
  comm::Group& replicas = mesh_.group("data");
  if (replicas.size() == 1) return own;
  at::Tensor all = at::empty({replicas.size() * own.numel()}, own.options());
  replicas.all_gather(all, own.flatten()).wait();
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] *= replicas.size();
  return all.view(sizes).narrow(0, 0, count);
}

std::string Drawer::parameters_of(const DrawOptions& options, int64_t seed, const at::Tensor& pixels) const {
  const std::string title =
      source_.reads_text() ? options.prompt : class_title(class_of(source_, options), source_.class_names);
  return concat(title, options.negative.empty() ? "" : "\nNegative prompt: " + options.negative,
                "\nSteps: ", options.steps, ", Sampler: ", run::options_of(source_, options.given()).sampler,
                ", CFG scale: ", print_number(guidance_of(source_, options)), ", Seed: ", seed,
                ", Size: ", pixels.size(2), "x", pixels.size(1),
                options.image.empty() ? "" : ", Denoising strength: " + print_number(options.strength),
                options.clip_skip == 0 ? "" : concat(", Clip skip: ", options.clip_skip + 1),
                options.approximate.empty() ? "" : ", Approximate: " + options.approximate,
                checksum_.empty() ? "" : ", Model hash: " + checksum_);
}

DrawnParts parts_of_drawing(const run::PipelineSource& source, const DrawOptions& options) {
  const ops::PictureSize cells = cells_of(source, options);
  const ClipLength length = clip_length(source, options.frames);
  const double guidance = guidance_of(source, options);
  return {cells, length, pictures_at_once(cells, length), run::has_second_pass(source, guidance) ? guidance : 1};
}

std::string checksum_of_model(const std::string& from) {
  constexpr size_t kDigits = 10;  // as other programs print
  const auto newest = checkpoint::latest(RunFolder(from).checkpoints());
  return (newest ? file_checksum(*newest + "/manifest.json")
                 : run::checksum_of(run::find_source(from, run::built_in())))
      .substr(0, kDigits);
}

}  // namespace colossal::diffusion
