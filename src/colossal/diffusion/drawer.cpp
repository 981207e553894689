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
#include "colossal/diffusion/drawn_class.h"
#include "colossal/diffusion/given_picture.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/program.h"

namespace colossal::diffusion {
namespace {

/// Pictures of this many cells together are drawn at once, at most kMostAtOnce.
constexpr int64_t kCellsAtOnce = 4096, kMostAtOnce = 16;

int64_t pictures_at_once(const ops::PictureSize& cells) {
  return std::clamp<int64_t>(kCellsAtOnce / std::max<int64_t>(1, cells.pixels()), 1, kMostAtOnce);
}

double guidance_of(const run::PipelineSource& source, const DrawOptions& options) {
  return options.guidance == 0 ? source.keys.guidance : options.guidance;
}

int64_t class_of(const run::PipelineSource& source, const DrawOptions& options) {
  return source.reads_text() ? 0 : drawn_class(options.drawn, source.class_names, source.sizes.classes);
}

/// Returns the pixels of which sides must be multiples.
int64_t grid_of(const run::PipelineSource& source) { return source.factor * source.sizes.side; }

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
  return cells;
}

}  // namespace

/// What all pictures of a drawing share.
struct Drawer::Request {
  const DrawOptions& options;
  const GivenPictures& given;
  noise::SamplerPlan plan;
  ops::PictureSize cells;
  tensor::Batch told, untold;  // of one row
  at::Tensor picture, mask;    // [1, C, h, w] and [1, 1, h, w]
  at::Tensor beside;           // [1, DenoiserSizes::beside, h, w]
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
  require(options.negative.empty() || guidance_of(source, options) != 1, "draw",
          "negative needs guidance, which leads away from it: got guidance 1; set another guidance, or leave it out");
  require(!options.tiles || source.has_latents(), "draw",
          "tiles need a model whose latents are decoded: got one that draws pixels; leave them out");
  require(source.sizes.beside == 0 || !options.mask.empty(), "draw",
          "the model paints inside a mask: got none; name the picture with --image and the mask with --mask");
  class_of(source, options);
  run::plan_of(source, options.given());
  const ops::PictureSize cells = cells_of(source, options);
  if (!given.latents.defined()) return;
  const std::vector<int64_t> wanted{options.count, source.sizes.channels, cells.height, cells.width};
  require(given.latents.sizes() == at::IntArrayRef(wanted), "draw", "latents must have the sizes ",
          at::IntArrayRef(wanted), ", one for each of --count: got ", given.latents.sizes());
}

Drawer::Request Drawer::request_of(const DrawOptions& options, const GivenPictures& given) {
  check(source_, options, given);
  Request request{.options = options,
                  .given = given,
                  .plan = run::plan_of(source_, options.given()),
                  .cells = cells_of(source_, options)};
  if (source_.reads_text()) {
    request.told = parts_.told(options.prompt, options.clip_skip);
    if (guidance_of(source_, options) != 1) request.untold = parts_.told(options.negative, options.clip_skip);
  }
  if (options.image.empty()) return request;
  ops::PictureSize pixels = options.pixels();
  if (source_.sizes.classes > 0) pixels = {request.cells.height * source_.factor, request.cells.width * source_.factor};
  const GivenPicture picture = read_given_picture(options.image, options.mask, pixels, grid_of(source_));
  request.cells = {picture.size.height / source_.factor, picture.size.width / source_.factor};
  comm::Group& all = mesh_.all();  // ranks that share the rows of the picture
  if (source_.sizes.beside > 0) {
    request.beside = at::cat({mask_of_cells(picture.mask, source_.factor).to(at::kFloat),
                              parts_.drawn(picture.pixels * (1 - picture.mask), options.tiles, &all).to(at::kFloat)},
                             1);
    if (options.strength < 1) request.picture = parts_.drawn(picture.pixels, options.tiles, &all);
    return request;  // the model itself keeps what the mask does not cover
  }
  request.picture = parts_.drawn(picture.pixels, options.tiles, &all);
  if (picture.mask.defined()) request.mask = mask_of_cells(picture.mask, source_.factor);
  return request;
}

void Drawer::draw(const DrawOptions& options, const GivenPictures& given,
                  const std::function<void(const DrawnPicture&)>& take) {
  const Request request = request_of(options, given);
  const std::string sampler = run::options_of(source_, options.given()).sampler;
  const std::string note = options.tiles ? parts_.note_of_tiles(request.cells) : "";
  const int64_t at_once = pictures_at_once(request.cells) * mesh_.group("data").size();
  for (int64_t first = 0; first < options.count; first += at_once) {
    const int64_t count = std::min(at_once, options.count - first);
    const Stopwatch watch;
    const at::Tensor pictures = drawn_by_all(request, first, count);
    const double seconds = watch.seconds() / static_cast<double>(count);
    if (mesh_.world().rank() != 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t seed = options.seed + first + i;
      take({.png =
                data::encode_png(picture_of(pictures[i]), {{"parameters", parameters_of(options, seed, pictures[i])}}),
            .seed = seed,
            .sampler = sampler,
            .steps = options.steps,
            .seconds = seconds,
            .note = note});
    }
  }
}

/// Draws and decodes a replica's share of the pictures, and gathers those of all.
at::Tensor Drawer::drawn_by_all(const Request& request, int64_t first, int64_t count) {
  comm::Group& replicas = mesh_.group("data");
  const int64_t share = (count + replicas.size() - 1) / replicas.size();
  const DrawOptions& options = request.options;
  const auto of_all = [&](const at::Tensor& x) { return x.defined() ? x.expand({share, -1, -1, -1}).contiguous() : x; };
  const auto repeated = [share](const tensor::Batch& row) {
    return tensor::joined_rows(std::vector(static_cast<size_t>(share), row));
  };
  Drawing drawing{.told = repeated(request.told),
                  .untold = repeated(request.untold),
                  .size = request.cells,
                  .guidance = guidance_of(source_, options),
                  .rescale = options.rescale,
                  .pictures = of_all(request.picture),
                  .mask = of_all(request.mask),
                  .beside = of_all(request.beside),
                  .stop_requested = request.given.stop_requested,
                  .halves = &mesh_.group(run::kGuidanceAxis)};
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
                checksum_.empty() ? "" : ", Model hash: " + checksum_);
}

DrawnParts parts_of_drawing(const run::PipelineSource& source, const DrawOptions& options) {
  const ops::PictureSize cells = cells_of(source, options);
  return {cells, pictures_at_once(cells), guidance_of(source, options)};
}

std::string checksum_of_model(const std::string& from) {
  constexpr size_t kDigits = 10;  // as other programs print
  const auto newest = checkpoint::latest(RunFolder(from).checkpoints());
  return (newest ? file_checksum(*newest + "/manifest.json")
                 : run::checksum_of(run::find_source(from, run::built_in())))
      .substr(0, kDigits);
}

}  // namespace colossal::diffusion
