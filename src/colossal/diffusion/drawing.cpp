#include "colossal/diffusion/drawing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/seed.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/conditions.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/not_finite.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/attention_reuse.h"
#include "colossal/nn/batch_step.h"
#include "colossal/noise/guidance.h"
#include "colossal/ops/random.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/tensor/batch.h"

namespace colossal::diffusion {
namespace {

/// Returns `x` and then its first rows again, up to `rows`: the layout may need more rows, whose results are not used.
at::Tensor filled(const at::Tensor& x, int64_t rows) {
  const int64_t count = x.size(0);
  const std::vector<at::Tensor> copies(static_cast<size_t>((rows + count - 1) / count), x);
  return at::cat(copies).narrow(0, 0, rows);
}

/// Returns the sizes of tensors of pictures or clips, whose other dimensions are `first`.
std::vector<int64_t> with_channels(std::vector<int64_t> first, const std::vector<int64_t>& cells) {
  first.insert(first.end(), cells.begin(), cells.end());
  return first;
}

/// The frames of clips that are given, if there are some.
class GivenFrames {
 public:
  GivenFrames(const Drawing& drawing, at::ScalarType dtype)
      : values_(drawing.given.defined() ? drawing.given.to(at::kCPU, dtype) : at::Tensor()),
        indices_(at::tensor(drawing.given_frames, at::kLong)) {}

  /// Returns clips [n, C, frames, h, w] with the given frames in place of their own.
  at::Tensor put_into(const at::Tensor& clips) const {
    return values_.defined() ? clips.index_copy(2, indices_, values_) : clips;
  }
  /// Returns the same with the given frames at a noise level, of `noise` [n, C, frames, h, w], times `scale`.
  at::Tensor put_noised(const at::Tensor& clips, const noise::Mix& level, const at::Tensor& noise, double scale) const {
    if (!values_.defined()) return clips;
    const at::Tensor mixed = level.signal * values_ + level.noise * noise.index_select(2, indices_);
    return clips.index_copy(2, indices_, scale * mixed);
  }
  /// Returns the field that marks them, int64 [rows, frames].
  at::Tensor field(int64_t rows, int64_t frames) const {
    return at::zeros({frames}, at::kLong).index_fill(0, indices_, 1).expand({rows, frames}).contiguous();
  }
  /// Returns the numbers of all other frames of one clip or picture.
  at::Tensor without(const at::Tensor& one) const {
    if (!values_.defined()) return one;
    const at::Tensor is_drawn = at::ones({one.size(1)}, at::kLong).index_fill(0, indices_, 0);
    return one.index_select(1, is_drawn.nonzero().flatten());
  }

 private:
  at::Tensor values_, indices_;
};

/// Returns true if guidance takes a second pass a step.
bool has_second_pass(const Drawing& drawing, const models::DenoiserSizes& sizes) {
  return drawing.guidance != 1 && !sizes.told_guidance;
}

/// Runs the passes of a drawing, with classes or captions and without.
class Predictor {
 public:
  /// `cells`: the sizes of one picture or clip, without its channels.
  Predictor(distributed::DistributedModel& model, const Drawing& drawing, const std::vector<int64_t>& cells,
            const GivenFrames& given)
      : model_(model),
        shape_(model.decoding_model().shape),
        sizes_(models::denoiser_of(shape_)),
        cells_(cells),
        guidance_(noise::guidance_factors(drawing.guidance)),
        rescale_(drawing.rescale),
        is_guided_(has_second_pass(drawing, sizes_)),
        rows_(static_cast<int64_t>(drawing.seeds.size())),
        halves_(drawing.halves && drawing.halves->size() > 1 ? drawing.halves : nullptr),
        beside_(drawing.beside),
        given_(given) {
    const bool reads_text = sizes_.text > 0;
    const at::Tensor classes = at::tensor(drawing.classes, at::kLong);
    const tensor::Batch told = reads_text ? drawing.told : models::told_batch(classes),
                        untold =
                            reads_text ? drawing.untold : models::told_batch(at::full_like(classes, sizes_.classes));
    tensor::Batch own = !is_guided_            ? told
                        : !halves_             ? tensor::joined_rows({told, untold})
                        : halves_->rank() == 0 ? told
                                               : untold;
    if (!drawing.given_frames.empty()) add_given(own);
    const int64_t parts = model.decoding_model().batch_parts;
    all_ = (own.rows() + parts - 1) / parts * parts;
    told_ = own.map([this](const tensor::Field& field) { return filled(field.tensor, all_); });
    tell_conditions(drawing);
  }

  const models::DenoiserSizes& sizes() const { return sizes_; }

  /// Returns the guided prediction [n, outputs, ..] for the inputs [n, C, ..], whose given frames are clean, or noised
  /// for a model with DenoiserSizes::noises_given. `reuse`: outputs of attention that the pass may take; null = none.
  at::Tensor predict(const at::Tensor& inputs, double time, nn::AttentionReuse* reuse) const {
    const at::Tensor read = beside_.defined() ? at::cat({inputs, beside_.to(inputs.scalar_type())}, 1) : inputs;
    const tensor::Batch batch =
        models::denoiser_batch(filled(read, all_), at::full({all_}, time, inputs.options()), told_);
    const at::Tensor like =
        at::empty(with_channels({all_, sizes_.outputs}, cells_),
                  at::TensorOptions(model_.parameters().options().device).dtype(inputs.scalar_type()));
    nn::ForwardContext pass = nn::step_of(batch);
    if (reuse) pass.parts.set(nn::ReusedAttention{reuse});
    at::Tensor outputs = model_.everywhere(
        pass,
        [&](int, const models::States& end, const nn::ForwardContext&) {
          return models::predicted_picture(shape_, end.at(0), batch).to(inputs.scalar_type());
        },
        like);
    if (halves_) outputs = run::gathered_halves(outputs.narrow(0, 0, rows_), *halves_);
    outputs = outputs.to(at::kCPU);
    if (!outputs.isfinite().all().item<bool>()) refuse(batch);
    const at::Tensor told = outputs.narrow(0, 0, rows_);
    return is_guided_ ? guided(told, outputs.narrow(0, rows_, rows_)) : told;
  }

 private:
  at::ScalarType dtype() const { return at::promote_types(model_.parameters().options().dtype, at::kFloat); }

  /// Adds the fields of the given frames to the rows of a pass.
  void add_given(tensor::Batch& rows) const {
    using tensor::Dim;
    rows.add("given", {given_.field(rows.rows(), cells_.front()), {Dim::Row, Dim::Other}});
    if (!sizes_.noises_given) return;
    const at::Tensor shown = given_.put_into(at::zeros(with_channels({rows_, sizes_.channels}, cells_), dtype()));
    rows.add("shown", {filled(shown, rows.rows()), {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  }
  /// Adds the conditions that follow from the drawing, and makes all of them exact.
  void tell_conditions(const Drawing& drawing) {
    const auto height = static_cast<double>(drawing.factor * cells_.at(cells_.size() - 2)),
               width = static_cast<double>(drawing.factor * cells_.back());
    for (const models::Condition& one : models::conditions_of(shape_)) {
      at::Tensor told = told_.find(one.name);
      if (one.name == models::kSizes) told = at::tensor({height, width, 0., 0., height, width}).expand({all_, -1});
      if (one.name == models::kGuidance) told = at::full({all_}, drawing.guidance, at::kDouble);
      told_ = told_.with(one.name, models::condition_field(told.to(dtype()).contiguous()));
    }
  }

  /// Throws the error for a prediction that is not finite. On all ranks alike, because the prediction is.
  [[noreturn]] void refuse(const tensor::Batch& batch) const {
    const models::Model& model = model_.decoding_model();
    const auto count = static_cast<int64_t>(model.blocks.size());
    std::string where;
    if (model.embed && model.norm &&
        std::all_of(model.blocks.begin(), model.blocks.end(), [](const models::Block& b) { return bool(b); }))
      where = models::first_not_finite(model, {.first = 0, .last = count}, {}, model_.ready(nn::step_of(batch)));
    if (where.empty()) where = "a layer";  // of another stage of a pipeline, or of the other pass of guidance
    throw Error("draw", concat("the numbers of the model must be finite: ", where, " gives others",
                               models::finite_remedy(model_.parameters().options().dtype)));
  }
  at::Tensor guided(const at::Tensor& told, const at::Tensor& untold) const {
    at::Tensor both = guidance_.conditional * told + guidance_.unconditional * untold;
    if (rescale_ == 0) return both;
    const auto deviation = [this](const at::Tensor& one) { return given_.without(one).std().item<double>(); };
    for (int64_t row = 0; row < rows_; ++row)
      both[row] *= noise::rescale_factor(deviation(told[row]), deviation(both[row]), rescale_);
    return both;
  }

  distributed::DistributedModel& model_;
  models::ModelShape shape_;
  models::DenoiserSizes sizes_;
  std::vector<int64_t> cells_;
  noise::GuidanceFactors guidance_;
  double rescale_;
  bool is_guided_;
  int64_t rows_, all_ = 0;  // of the pictures, and of a pass
  comm::Group* halves_;     // ranks that share guidance; null = both passes are here
  tensor::Batch told_;      // classes, or fields of captions, and conditions, in `all_` rows
  at::Tensor beside_;
  const GivenFrames& given_;
};

/// Returns standard normal numbers of each picture, [n, C, ..], in fp32 and then in `dtype`.
at::Tensor fresh_noise(const std::vector<uint64_t>& seeds, const std::vector<int64_t>& of_one, uint64_t step,
                       at::ScalarType dtype) {
  const std::vector<int64_t> start(of_one.size(), 0);
  std::vector<at::Tensor> pictures;
  for (const uint64_t seed : seeds) {
    at::Tensor numbers = at::empty(of_one, at::kFloat);
    ops::fill_normal(numbers, of_one, start, start, of_one, derive_seed(derive_seed(seed, "drawing"), step), 1);
    pictures.push_back(numbers);
  }
  return at::stack(pictures).to(dtype);
}

/// The tensors of which a step makes the next sample.
struct Parts {
  at::Tensor sample, base, output, noise;
  std::deque<at::Tensor> estimates;  // the newest first
};

at::Tensor combined(const noise::Combination& factors, const Parts& parts) {
  at::Tensor sum = at::zeros_like(parts.sample);
  const auto add = [&](double factor, const at::Tensor& x) {
    if (factor != 0) sum += factor * x;
  };
  add(factors.sample, parts.sample);
  add(factors.base, parts.base);
  add(factors.output, parts.output);
  add(factors.noise, parts.noise);
  for (size_t i = 0; i < parts.estimates.size() && i < factors.estimates.size(); ++i)
    add(factors.estimates[i], parts.estimates[i]);
  return sum;
}

/// Returns the noise that a predicted variance asks for: `variance` is the model's second output.
at::Tensor with_variance(const at::Tensor& noise, const at::Tensor& variance, const noise::LogVariances& logs) {
  const at::Tensor share = (variance + 1) / 2;
  return at::exp((share * logs.large + (1 - share) * logs.small) / 2) * noise;
}

/// Returns the height and width in cells, of a clip after its frames.
std::vector<int64_t> cells_of_drawing(const Drawing& drawing, const models::DenoiserSizes& sizes) {
  require(drawing.frames == 0 || (drawing.frames > 0 && sizes.frames > 0), "draw",
          "only a model of clips draws frames: got ", drawing.frames, "; leave frames out");
  const ops::PictureSize size = drawing.size.pixels() > 0 ? drawing.size : ops::PictureSize{sizes.height, sizes.width};
  if (sizes.frames == 0) return {size.height, size.width};
  return {drawing.frames > 0 ? drawing.frames : sizes.frames, size.height, size.width};
}

/// Checks that both passes are told the conditions of the model that do not follow from the drawing.
void check_conditions(const Drawing& drawing, const models::ModelShape& shape, const ops::PictureSize& cells) {
  for (const models::Condition& one : models::conditions_of(shape)) {
    if (one.name == models::kSizes || one.name == models::kGuidance) continue;
    for (const tensor::Batch* told : {&drawing.told, &drawing.untold}) {
      if (told->rows() == 0) continue;  // there is no such pass
      const at::Tensor found = told->find(one.name), wanted = one.zeros(told->rows(), cells, at::kMeta).tensor;
      require(found.defined() && found.sizes() == wanted.sizes(), "draw", "the model must be told the field `",
              one.name, "` of each picture, ", wanted.sizes(), ": got ",
              found.defined() ? concat(found.sizes()) : std::string("none"));
    }
  }
}

/// Checks the frames that are given.
void check_given(const Drawing& drawing, const models::DenoiserSizes& sizes, const std::vector<int64_t>& cells) {
  const std::vector<int64_t>& frames = drawing.given_frames;
  if (frames.empty() && !drawing.given.defined()) return;
  require(sizes.frames > 0, "draw", "only clips have given frames: got a model of pictures");
  const std::set<int64_t> chosen(frames.begin(), frames.end());
  const auto given = static_cast<int64_t>(chosen.size());
  require(chosen.size() == frames.size() && given > 0 && given < cells.front() && *chosen.begin() >= 0 &&
              *chosen.rbegin() < cells.front(),
          "draw", "given frames must be different ones of the ", cells.front(),
          " frames of a clip, and leave one to draw: got ", join(frames, ", "));
  const std::vector<int64_t> wanted{static_cast<int64_t>(drawing.seeds.size()), sizes.channels, given, cells[1],
                                    cells[2]};
  require(drawing.given.defined() && drawing.given.sizes() == at::IntArrayRef(wanted), "draw",
          "given frames must have the sizes ", at::IntArrayRef(wanted), ": got ",
          drawing.given.defined() ? drawing.given.sizes() : at::IntArrayRef());
}

/// Returns cells_of_drawing(), after checks of what is drawn.
std::vector<int64_t> checked_cells(const Drawing& drawing, const models::ModelShape& shape) {
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  const auto count = static_cast<int64_t>(drawing.seeds.size());
  const std::vector<int64_t> cells = cells_of_drawing(drawing, sizes);
  require(count > 0, "draw", "a drawing must have a seed for each picture: got none");
  const bool is_guided = has_second_pass(drawing, sizes);
  if (drawing.halves) run::check_guidance_ranks(drawing.halves->size(), is_guided ? drawing.guidance : 1);
  if (sizes.text == 0) {
    require(drawing.classes.size() == drawing.seeds.size(), "draw", "each picture must have a class and a seed: got ",
            drawing.classes.size(), " classes and ", count, " seeds");
    for (const int64_t one : drawing.classes)
      require(one >= 0 && one <= sizes.classes, "draw", "classes must be in [0, ", sizes.classes, "): got ", one);
  }
  const char* const field = models::text_encoder_blocks(shape) > 0 ? "ids" : "text";
  for (const tensor::Batch* told : {&drawing.told, &drawing.untold}) {
    const bool is_needed = sizes.text > 0 && (told == &drawing.told || is_guided);
    require(told->rows() == (is_needed ? count : 0) && told->find(field).defined() == is_needed, "draw",
            "a model that reads text must have the field `", field, "` for each of ", count,
            " pictures, and only such a model: got ", told->rows(), " rows");
  }
  const auto check = [&](const at::Tensor& x, const char* what, int64_t channels) {
    const std::vector<int64_t> wanted = with_channels({count, channels}, cells);
    require(!x.defined() || x.sizes() == at::IntArrayRef(wanted), "draw", what, " must have the sizes ",
            at::IntArrayRef(wanted), ": got ", x.defined() ? x.sizes() : at::IntArrayRef());
  };
  check(drawing.start, "the starting noise", sizes.channels);
  check(drawing.pictures, "the pictures to begin from", sizes.channels);
  check(drawing.mask, "the mask", 1);
  check(drawing.beside, "what the model reads beside the sample", sizes.beside);
  require(drawing.beside.defined() == (sizes.beside > 0), "draw",
          "a model that paints inside a mask must have a mask and a picture, and only such a model: got ",
          drawing.beside.defined() ? "both" : "none");
  check_conditions(drawing, shape, {cells.at(cells.size() - 2), cells.back()});
  require(!drawing.mask.defined() || drawing.pictures.defined(), "draw",
          "a mask must come with the pictures that it keeps: got none");
  check_given(drawing, sizes, cells);
  return cells;
}

void check_broadcast(const Drawing& drawing, const models::ModelShape& shape) {
  require(!drawing.broadcast || shape.part<models::AttentionAxes>().two, "draw",
          "pyramid attention broadcast needs a model with two axes, such as an STDiT: got ", shape.architecture->name,
          "; leave approximate out");
}

/// Returns the given pictures at a noise level.
at::Tensor noised(const at::Tensor& pictures, const noise::Mix& level, const at::Tensor& noise) {
  return level.signal * pictures + level.noise * noise;
}

}  // namespace

at::Tensor draw(distributed::DistributedModel& model, const noise::SamplerPlan& plan, const Drawing& drawing) {
  const at::NoGradGuard no_grad;
  const models::ModelShape& shape = model.decoding_model().shape;
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  const std::vector<int64_t> cells = checked_cells(drawing, shape);
  check_broadcast(drawing, shape);
  const at::ScalarType dtype = at::promote_types(model.parameters().options().dtype, at::kFloat);
  const GivenFrames given(drawing, dtype);
  const Predictor predictor(model, drawing, cells, given);
  const auto host = [&](const at::Tensor& x) { return x.defined() ? x.to(at::kCPU, dtype) : x; };
  const auto fresh = [&](uint64_t step) {
    return fresh_noise(drawing.seeds, with_channels({sizes.channels}, cells), step, dtype);
  };
  const at::Tensor noise = drawing.start.defined() ? host(drawing.start) : fresh(0), pictures = host(drawing.pictures),
                   mask = host(drawing.mask);
  const auto steps = static_cast<int64_t>(plan.steps.size());
  nn::AttentionReuse reuse;
  Parts parts;
  parts.sample = pictures.defined() ? noised(pictures, plan.steps.front().level, noise) : plan.start_scale * noise;
  parts.base = parts.sample;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const noise::SamplerStep& step = plan.steps[i];
    if (drawing.stop_requested && drawing.stop_requested()) throw StoppedDrawing();
    if (drawing.broadcast) reuse.begin_pass(drawing.broadcast->uses(static_cast<int64_t>(i), steps));
    const at::Tensor inputs = step.input_scale * parts.sample;
    const at::Tensor predicted = predictor.predict(
        sizes.noises_given ? given.put_noised(inputs, step.level, noise, step.input_scale) : given.put_into(inputs),
        step.time, drawing.broadcast ? &reuse : nullptr);
    parts.output = predicted.narrow(1, 0, sizes.channels);
    at::Tensor estimate = step.estimate.sample * parts.sample + step.estimate.output * parts.output;
    if (step.clip > 0) estimate = estimate.clamp(-step.clip, step.clip);
    parts.estimates.push_front(std::move(estimate));
    if (step.next.noise != 0 || step.learned) parts.noise = fresh(i + 1);
    at::Tensor next = combined(step.next, parts);
    if (step.learned)
      next += with_variance(parts.noise, predicted.narrow(1, sizes.channels, sizes.channels), *step.learned);
    if (step.next_base) parts.base = combined(*step.next_base, parts);
    if (mask.defined()) {
      const bool is_last = i + 1 == plan.steps.size();
      next = mask * next + (1 - mask) * (is_last ? pictures : noised(pictures, plan.steps[i + 1].level, noise));
    }
    parts.sample = std::move(next);
    if (!step.keeps_estimate) parts.estimates.pop_front();
    while (parts.estimates.size() > plan.history) parts.estimates.pop_back();
  }
  return given.put_into(parts.sample);
}

data::Picture picture_of(const at::Tensor& pixels) {
  require(pixels.dim() == 3 && pixels.size(0) == 3, "draw", "pixels must be [3, height, width]: got ", pixels.sizes());
  const at::Tensor bytes = ((pixels.to(at::kCPU, at::kDouble).clamp(-1, 1) + 1) * 127.5)
                               .round()
                               .to(at::kByte)
                               .permute({1, 2, 0})
                               .contiguous();
  const auto* first = bytes.const_data_ptr<uint8_t>();
  return {.width = pixels.size(2), .height = pixels.size(1), .rgb = {first, first + bytes.numel()}};
}

}  // namespace colossal::diffusion
