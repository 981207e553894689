#include "colossal/models/autoencoder_clips.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/clip_sizes.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/clip_memory.h"

namespace colossal::models {
namespace autoencoder_clips {  // a namespace of its own, because files of a layer may be compiled as one

constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments,
              kLatent = AutoencoderStates::latent;

tensor::Batch clip_batch(const char* name, const at::Tensor& clips) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add(name, {clips, {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

/// Returns a clip of these sizes without memory of its own: layers read nothing but its sizes.
at::Tensor sizes_alone(const at::Tensor& like, std::vector<int64_t> sizes) {
  return at::zeros({1}, like.options()).expand(sizes);
}

/// Returns x [B, T S, C] as [B, C, T, height, width].
at::Tensor as_clips(const at::Tensor& x, const ops::PictureSize& size) {
  return x.transpose(1, 2).unflatten(2, {-1, size.height, size.width}).contiguous();
}

ops::PictureSize cells_of(const AutoencoderSizes& sizes, const at::Tensor& pixels) {
  return {sizes.cells(pixels.size(-2)), sizes.cells(pixels.size(-1))};
}

ops::PictureSize pixels_of(const AutoencoderSizes& sizes, const at::Tensor& latents) {
  return {latents.size(-2) * sizes.factor, latents.size(-1) * sizes.factor};
}

bool is_whole(const AutoencoderSizes& sizes) { return sizes.frames > 0 && sizes.chunk_frames == 0; }

void check_pixels(const AutoencoderSizes& sizes, const at::Tensor& pixels) {
  require(pixels.dim() == 5 && pixels.size(3) >= sizes.factor && pixels.size(4) >= sizes.factor, "model",
          "clips to encode must be [B, channels, T, H, W] of at least ", sizes.factor, " x ", sizes.factor,
          " pixels, a cell of a latent: got ", pixels.sizes());
}

/// Returns the frames of clips with these latents, after a check.
int64_t checked_frames(const AutoencoderSizes& sizes, const at::Tensor& latents, int64_t frames) {
  require(latents.dim() == 5 && latents.size(1) == sizes.channels, "model", "latents of clips must be [B, ",
          sizes.channels, ", t, h, w]: got ", latents.sizes());
  const int64_t least = pixel_frames(sizes, latents.size(2));
  if (frames == 0) return least;
  require(latent_frames(sizes, frames) == latents.size(2), "model", "a latent of ", latents.size(2),
          " frames must be decoded to as many frames as it stands for: got ", frames, "; such a number is ", least);
  return frames;
}

/// Encodes and decodes frames that are independent, by pictures or by chunks.
class Parts {
 public:
  Parts(const Model& model, const ChunkOptions& options)
      : model_(model),
        sizes_(autoencoder_of(model.shape)),
        at_once_(std::max<int64_t>(1, options.frames)),
        parameters_(options.parameters),
        saves_memory_(options.saves_memory) {}

  void encode(int64_t frames, const FrameReader& read, const FrameTaker& take) const {
    const int64_t chunk = sizes_.frames == 0 ? at_once_ : sizes_.chunk_frames;
    for (int64_t first = 0; first < frames; first += chunk)
      take(sizes_.frames == 0 ? moments_of_pictures(read(first, std::min(chunk, frames - first)))
                              : moments_of_chunk(first, std::min(chunk, frames - first), read));
  }

  void decode(const at::Tensor& latents, int64_t frames, const FrameTaker& take) const {
    if (sizes_.frames == 0) {
      for (const at::Tensor& some : latents.split(at_once_, 2)) take(decoded_pictures(some));
      return;
    }
    const int64_t of_chunk = latent_frames(sizes_, sizes_.chunk_frames);
    for (const at::Tensor& chunk : latents.split(of_chunk, 2)) {
      decode_chunk(chunk, std::min(sizes_.chunk_frames, frames), take);
      frames -= sizes_.chunk_frames;
    }
  }

 private:
  at::Tensor moments_of_pictures(const at::Tensor& pixels) const {
    check_pixels(sizes_, pixels);
    const at::Tensor pictures = pixels.transpose(1, 2).flatten(0, 1);
    return (parameters_ ? moments_exactly(model_, *parameters_, pictures, nullptr, saves_memory_)
                        : moments_of(model_, pictures))
        .unflatten(0, {pixels.size(0), -1})
        .transpose(1, 2);
  }
  at::Tensor decoded_pictures(const at::Tensor& latents) const {
    const at::Tensor pictures = latents.transpose(1, 2).flatten(0, 1);
    return (parameters_ ? decoded_exactly(model_, *parameters_, pictures, nullptr, saves_memory_)
                        : models::decoded(model_, pictures))
        .unflatten(0, {latents.size(0), -1})
        .transpose(1, 2);
  }

  bool passes_by_rows(const ops::PictureSize& cells) const {
    return parameters_ && has_frame_rows(model_.shape) && (saves_memory_ || prefers_rows(model_.shape, cells.pixels()));
  }
  /// Returns hidden states [B, T, cells, C] of the latents of frames.
  at::Tensor encoded_frames(const at::Tensor& pixels) const {
    if (!passes_by_rows(cells_of(sizes_, pixels))) {
      const Stage of_frames{.first = 0, .last = sizes_.frame_blocks, .embeds = true, .ends = false};
      return run_stage(model_, of_frames, {}, nn::step_of(clip_batch("images", pixels))).at(kHidden);
    }
    const at::Tensor moments = frame_moments_by_rows(model_, *parameters_, pixels.transpose(1, 2).flatten(0, 1));
    const at::Tensor latents = moments.chunk(2, 1)[0].to(parameters_->options().dtype) * frame_scaling(model_.shape);
    return latents.flatten(2).transpose(1, 2).contiguous().unflatten(0, {pixels.size(0), -1});
  }
  /// Returns clips of such hidden states. `latents`: those of the clip.
  at::Tensor decoded_frames(const at::Tensor& hidden, const at::Tensor& latents, const nn::ForwardContext& step) const {
    const ops::PictureSize cells{latents.size(3), latents.size(4)};
    if (!passes_by_rows(cells)) {
      const auto blocks = static_cast<int64_t>(model_.blocks.size());
      const Stage of_frames{.first = sizes_.frames_from, .last = blocks, .embeds = false, .ends = true};
      States own(model_.states.size());
      own.at(kHidden) = hidden.contiguous();
      return as_clips(run_stage(model_, of_frames, std::move(own), step).at(kHidden), pixels_of(sizes_, latents));
    }
    const at::Tensor frames =
        as_clips(hidden.flatten(1, 2), cells).transpose(1, 2).flatten(0, 1) / frame_scaling(model_.shape);
    return decoded_frames_by_rows(model_, *parameters_, frames).unflatten(0, {hidden.size(0), -1}).transpose(1, 2);
  }

  at::Tensor moments_of_chunk(int64_t first, int64_t count, const FrameReader& read) const {
    std::vector<at::Tensor> hidden;
    at::Tensor like;
    for (int64_t done = 0; done < count; done += at_once_) {
      like = read(first + done, std::min(at_once_, count - done));
      check_pixels(sizes_, like);
      hidden.push_back(encoded_frames(like));
    }
    States states(model_.states.size());
    states.at(kHidden) = at::cat(hidden, 1);
    const Stage rest{.first = sizes_.frame_blocks, .last = sizes_.encoder_blocks, .embeds = false, .ends = false};
    const at::Tensor clip = sizes_alone(like, {like.size(0), like.size(1), count, like.size(3), like.size(4)});
    states = run_stage(model_, rest, std::move(states), nn::step_of(clip_batch("images", clip)));
    return as_clips(states.at(kMoments), cells_of(sizes_, like));
  }

  void decode_chunk(const at::Tensor& latents, int64_t frames, const FrameTaker& take) const {
    nn::ForwardContext step = nn::step_of(clip_batch("latents", latents));
    step.parts.set(ClipFrames{frames});
    States states(model_.states.size());
    states.at(kLatent) = latents.flatten(2).transpose(1, 2).contiguous();
    const Stage in_time{.first = sizes_.encoder_blocks, .last = sizes_.frames_from, .embeds = false, .ends = false};
    states = run_stage(model_, in_time, std::move(states), step);
    for (const at::Tensor& some : states.at(kHidden).split(at_once_, 1)) take(decoded_frames(some, latents, step));
  }

  const Model& model_;
  AutoencoderSizes sizes_;
  int64_t at_once_;                   // frames
  const nn::Parameters* parameters_;  // null = frames do not pass by rows
  bool saves_memory_;
};

/// A clip whose norms read all of its frames, in chunks of time.
class Stream {
 public:
  /// Makes the states of the frames [first, first + count) of the source, and its chunk.
  using Source = std::function<States(int64_t first, int64_t count, const nn::ForwardContext& chunk)>;

  /// `clip`: of the whole clip, sizes alone; `name`: its field. `frames`: those of the source, of which `unit` stand
  /// for a frame of the latent.
  Stream(const Model& model, const char* name, const at::Tensor& clip, int64_t frames, int64_t latents, Source source,
         const ChunkOptions& options)
      : model_(model),
        memory_(options.band_elements),
        whole_(nn::step_of(clip_batch(name, clip))),
        step_(nn::step_of(clip_batch(name, clip.narrow(2, 0, 1)))),
        source_(std::move(source)),
        frames_(frames),
        latents_(latents),
        at_once_(std::max<int64_t>(1, options.latent_frames)),
        most_(options.state_elements),
        room_(options.stored_bytes),
        element_(static_cast<int64_t>(clip.element_size())) {
    step_.parts.set(nn::ClipPass{&memory_});
  }

  /// Runs the blocks [first, last), and the norm if `ends`, and calls `take` for the states of each chunk in their
  /// order.
  void run(int64_t first, int64_t last, bool ends, const std::function<void(const States&)>& take) {
    from_ = first;
    for (int64_t block = first; block < last; ++block) {
      if (block + 1 == last && !ends) break;
      const std::vector<int64_t> sizes = model_.states.at(kHidden).sizes(whole_, block);
      if (bytes_of(sizes) + stored_bytes_ <= room_ &&
          model_.blocks[static_cast<size_t>(block)].writes == std::vector<int>{kHidden})
        store(block + 1, sizes);
    }
    while (pass(last, ends, take)) {
    }
  }

 private:
  int64_t bytes_of(const std::vector<int64_t>& sizes) const {
    int64_t bytes = element_;
    for (const int64_t size : sizes) bytes *= size;
    return bytes;
  }

  using StatesTaker = std::function<void(const States&)>;

  /// Runs the blocks up to `end` for all chunks. Returns true if it made the statistics of a norm instead.
  bool pass(int64_t end, bool ends, const StatesTaker& take) {
    const int64_t unit = latents_ > 1 ? (frames_ - 1) / (latents_ - 1) : 1;
    memory_.begin_pass();
    for (int64_t first = 0, count = 0; first < frames_; first += count) {
      count = std::min(frames_ - first, unit * at_once_ - (first == 0 ? unit - 1 : 0));
      memory_.begin_chunk();
      pass_chunk(source_(first, count, step_), end, ends, take);
    }
    return memory_.end_pass();
  }

  /// Runs the blocks for a chunk. Blocks that join frames read those of all its parts.
  void pass_chunk(States states, int64_t end, bool ends, const StatesTaker& take) {
    int64_t block = from_;
    for (int64_t next = block + 1; next < end; ++next) {
      if (!joins_frames(next)) continue;
      std::vector<at::Tensor> parts;
      pass_parts(std::move(states), block, next, false, [&](const States& part) { parts.push_back(part.at(kHidden)); });
      if (memory_.is_idle()) return;
      states = States(model_.states.size());
      states.at(kHidden) = parts.size() == 1 ? parts.front() : at::cat(parts, 1);
      block = next;
    }
    pass_parts(std::move(states), block, end, ends, take);
  }

  /// Runs the blocks [block, end), and the norm if `ends`, frame by frame where the hidden state is large.
  void pass_parts(States states, int64_t block, int64_t end, bool ends, const StatesTaker& take) {
    for (; block < end && !memory_.is_idle(); ++block) {
      if (!joins_frames(block) && is_large(states.at(kHidden)))
        return pass_frames(states.at(kHidden), block, end, ends, take);
      states = run_stage(model_, {.first = block, .last = block + 1, .embeds = false, .ends = false}, std::move(states),
                         step_);
    }
    if (ends && !memory_.is_idle()) {
      if (is_large(states.at(kHidden))) return pass_frames(states.at(kHidden), block, end, ends, take);
      states = run_stage(model_, {.first = end, .last = end, .embeds = false, .ends = true}, std::move(states), step_);
    }
    if (!memory_.is_idle()) take(states);
  }

  void pass_frames(const at::Tensor& hidden, int64_t block, int64_t end, bool ends, const StatesTaker& take) {
    for (const at::Tensor& frame : hidden.split(1, 1)) {
      memory_.begin_chunk();  // each frame reaches the norm whose statistics are made
      States states(model_.states.size());
      states.at(kHidden) = frame.contiguous();
      pass_parts(std::move(states), block, end, ends, take);
    }
  }

  bool is_large(const at::Tensor& hidden) const {
    return hidden.defined() && hidden.size(1) > 1 && hidden.numel() > most_;
  }
  bool joins_frames(int64_t block) const {
    const State& hidden = model_.states.at(kHidden);
    return hidden.sizes(whole_, block).at(1) < hidden.sizes(whole_, block - 1).at(1);
  }

  /// Stores the hidden state before the block `end`, from which later passes begin.
  void store(int64_t end, const std::vector<int64_t>& sizes) {
    at::Tensor all;
    int64_t done = 0;
    while (pass(end, false, [&](const States& states) {
      const at::Tensor& some = states.at(kHidden);
      if (!all.defined()) all = at::empty(sizes, some.options()), element_ = static_cast<int64_t>(some.element_size());
      all.narrow(1, done, some.size(1)).copy_(some);
      done += some.size(1);
    })) {
    }
    from_ = end, frames_ = sizes.at(1), stored_bytes_ = bytes_of(sizes);
    source_ = [all, count = model_.states.size()](int64_t first, int64_t frames, const nn::ForwardContext&) {
      States states(count);
      states.at(kHidden) = all.narrow(1, first, frames);
      return states;
    };
  }

  const Model& model_;
  nn::ClipMemory memory_;
  nn::ForwardContext whole_, step_;
  Source source_;
  int64_t frames_, latents_, at_once_, most_, room_, stored_bytes_ = 0, from_ = 0;
  int64_t element_;  // bytes of an element of hidden states, or of the source before one is known
};

void encode_stream(const Model& model, int64_t frames, const FrameReader& read, const FrameTaker& take,
                   const ChunkOptions& options) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  const at::Tensor like = read(0, 1);
  check_pixels(sizes, like);
  const at::Tensor clip = sizes_alone(like, {like.size(0), like.size(1), frames, like.size(3), like.size(4)});
  const auto embed = [&](int64_t first, int64_t count, const nn::ForwardContext& chunk) {
    return run_stage(model, {.first = 0, .last = 0, .embeds = true, .ends = false}, {},
                     nn::step_of(clip_batch("images", read(first, count)), chunk));
  };
  Stream stream(model, "images", clip, frames, latent_frames(sizes, frames), embed, options);
  stream.run(0, sizes.encoder_blocks, false,
             [&](const States& states) { take(as_clips(states.at(kMoments), cells_of(sizes, like))); });
}

void decode_stream(const Model& model, const at::Tensor& latents, const FrameTaker& take, const ChunkOptions& options) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  const auto cells = [&](int64_t first, int64_t count, const nn::ForwardContext&) {
    States states(model.states.size());
    states.at(kLatent) = latents.narrow(2, first, count).flatten(2).transpose(1, 2).contiguous();
    return states;
  };
  Stream stream(model, "latents", sizes_alone(latents, latents.sizes().vec()), latents.size(2), latents.size(2), cells,
                options);
  stream.run(sizes.encoder_blocks, static_cast<int64_t>(model.blocks.size()), true,
             [&](const States& states) { take(as_clips(states.at(kHidden), pixels_of(sizes, latents))); });
}

/// Returns what `run` gives to its taker, one after another.
at::Tensor joined(const std::function<void(const FrameTaker&)>& run) {
  std::vector<at::Tensor> all;
  run([&](const at::Tensor& frames) { all.push_back(frames); });
  return at::cat(all, 2);
}

}  // namespace autoencoder_clips

int64_t latent_frames(const AutoencoderSizes& sizes, int64_t frames) {
  require(frames > 0, "model", "a clip must have at least one frame: got ", frames);
  if (sizes.frames == 0) return frames;
  const int64_t factor = sizes.frame_factor, chunk = sizes.chunk_frames;
  if (chunk > 0) {
    const auto of = [factor](int64_t count) { return (count + factor - 1) / factor; };
    return frames / chunk * of(chunk) + of(frames % chunk);
  }
  require((frames - 1) % factor == 0, "model", "the autoencoder makes clips of ", factor, " k + 1 frames: got ", frames,
          "; nearest: ", (frames - 1 + factor / 2) / factor * factor + 1);
  return (frames - 1) / factor + 1;
}

int64_t pixel_frames(const AutoencoderSizes& sizes, int64_t latents) {
  require(latents > 0, "model", "the latent of a clip must have at least one frame: got ", latents);
  if (sizes.frames == 0) return latents;
  const int64_t factor = sizes.frame_factor;
  if (sizes.chunk_frames == 0) return (latents - 1) * factor + 1;
  const int64_t of_chunk = latent_frames(sizes, sizes.chunk_frames), rest = latents % of_chunk;
  return latents / of_chunk * sizes.chunk_frames + (rest > 0 ? (rest - 1) * factor + 1 : 0);
}

at::Tensor reconstructed_clips(const at::Tensor& end, const ClipSize& size) {
  const int64_t pixels = size.frames * size.picture.pixels();
  require(end.dim() == 3 && end.size(1) == pixels, "model", "the reconstruction of clips of ", size.frames,
          " frames of ", size.picture.height, " x ", size.picture.width, " must be [B, ", pixels, ", channels]: got ",
          end.sizes());
  return autoencoder_clips::as_clips(end, size.picture);
}

at::Tensor moments_of_clips(const Model& model, const at::Tensor& pixels) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  autoencoder_clips::check_pixels(sizes, pixels);
  latent_frames(sizes, pixels.size(2));
  if (!autoencoder_clips::is_whole(sizes))
    return autoencoder_clips::joined([&](const FrameTaker& take) {
      encode_in_chunks(model, pixels.size(2),
                       [&](int64_t first, int64_t count) { return pixels.narrow(2, first, count); }, take,
                       {.frames = pixels.size(2)});
    });
  const at::NoGradGuard no_grad;
  const Stage encoder{.first = 0, .last = sizes.encoder_blocks, .embeds = true, .ends = false};
  const States states = run_stage(model, encoder, {}, nn::step_of(autoencoder_clips::clip_batch("images", pixels)));
  return autoencoder_clips::as_clips(states.at(AutoencoderStates::moments), autoencoder_clips::cells_of(sizes, pixels));
}

at::Tensor decoded_clips(const Model& model, const at::Tensor& latents, int64_t frames) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  frames = autoencoder_clips::checked_frames(sizes, latents, frames);
  if (!autoencoder_clips::is_whole(sizes))
    return autoencoder_clips::joined(
        [&](const FrameTaker& take) { decode_in_chunks(model, latents, take, frames, {.frames = frames}); });
  const at::NoGradGuard no_grad;
  States states(model.states.size());
  states.at(AutoencoderStates::latent) = latents.flatten(2).transpose(1, 2).contiguous();
  const Stage decoder{
      .first = sizes.encoder_blocks, .last = static_cast<int64_t>(model.blocks.size()), .embeds = false, .ends = true};
  states = run_stage(model, decoder, std::move(states), nn::step_of(autoencoder_clips::clip_batch("latents", latents)));
  return autoencoder_clips::as_clips(states.at(AutoencoderStates::hidden),
                                     autoencoder_clips::pixels_of(sizes, latents));
}

void encode_in_chunks(const Model& model, int64_t frames, const FrameReader& read, const FrameTaker& take,
                      const ChunkOptions& options) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  latent_frames(sizes, frames);
  const at::NoGradGuard no_grad;
  if (autoencoder_clips::is_whole(sizes))
    autoencoder_clips::encode_stream(model, frames, read, take, options);
  else
    autoencoder_clips::Parts(model, options).encode(frames, read, take);
}

void decode_in_chunks(const Model& model, const at::Tensor& latents, const FrameTaker& take, int64_t frames,
                      const ChunkOptions& options) {
  const AutoencoderSizes sizes = autoencoder_of(model.shape);
  frames = autoencoder_clips::checked_frames(sizes, latents, frames);
  const at::NoGradGuard no_grad;
  if (autoencoder_clips::is_whole(sizes))
    autoencoder_clips::decode_stream(model, latents, take, options);
  else
    autoencoder_clips::Parts(model, options).decode(latents, frames, take);
}

}  // namespace colossal::models
