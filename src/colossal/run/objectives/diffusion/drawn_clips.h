// The clips from which a model learns to draw: their lengths, which part of each video an epoch uses, and their pixels.
//
//   DrawnPictures drawn = open_drawn_pictures(config, keys, pipeline);
//   choose_clips(drawn, lengths_of_clips(keys, pipeline, config.replica_rows(0)), seed);
//   data::BucketReader reader(samples, {.batches = {...}, .buckets = drawn.buckets, .clips = drawn.clips});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/data/videos/clip_lengths.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/own_tables.h"
#include "colossal/tensor/replica_rows.h"

namespace colossal::run {

/// Returns the sizes of the autoencoder of a pipeline. A model of pixels has those of one that leaves pixels as they
/// are. Errors: those of find_source().
models::AutoencoderSizes autoencoder_sizes(const PipelineSource& pipeline);

/// Returns how a replica reads the batches of a run.
data::BatchOptions batch_options(const Config& config, int replica, int64_t threads);

/// Refuses the keys of clips for a model of pictures. `model_of_clips`: the name of one, for the message. Errors
/// ("data"): any of them is set.
void refuse_clip_keys(const DrawnDataKeys& keys, const char* model_of_clips);

/// Checks the keys of [data] that belong to clips. Errors ("data"): any of them for a model of pictures; mirror or
/// prior for one of clips; those of check_clip_lengths().
void check_clip_keys(const DrawnDataKeys& keys, const PipelineSource& pipeline);

/// Checks data.frames. Errors ("data"): lengths that models::latent_frames() refuses, with the nearest.
void check_clip_lengths(const std::vector<int64_t>& lengths, const models::AutoencoderSizes& vae);

/// Returns the lengths of the clips of a run with all their lists; those of the model, if data.frames is empty.
/// Errors: those of data::completed().
data::ClipLengths lengths_of_clips(const DrawnDataKeys& keys, const PipelineSource& pipeline,
                                   const tensor::ReplicaRows& rows);

/// Sets training.batch_size, with data.batch_sizes, to the rows of the batches with the most frames
/// (data::largest_length()), of which memory and plans are those of the run. Errors ("data"): batch_sizes for which
/// that number does not divide by the replicas and data.frames is given.
void complete_clip_batches(Config& config, const DrawnDataKeys& keys);
/// ObjectiveRow::complete of the objective: complete_clip_batches().
void complete_diffusion(Config& config, const OwnTables& tables, std::vector<std::string>& notices);

/// Checks that complete_clip_batches() was called. `table`: that of the objective, for the message. Errors
/// ("training"): another training.batch_size.
void check_clip_batches(const Config& config, const data::ClipLengths& lengths, const char* table);
/// Checks that batches of several sizes are not to be replayed. Errors ("training"): training.cuda_graph with them.
void check_one_shape(const Config& config, const DrawnPictures& drawn, const data::ClipLengths& lengths);

/// Sets `clips` to those of training, and held_out_frames to the longest length up to that of the largest batches that
/// a clip held out reaches. Shorter clips leave held_out, with a notice. Requires: fps is set.
/// Errors: those of data::ClipRows.
void choose_clips(DrawnPictures& drawn, const data::ClipLengths& lengths, uint64_t seed);

/// Sets the parts of each clip: those that a run of `steps` steps uses, and those held out. Requires: choose_clips().
void add_parts(DrawnPictures& drawn, int64_t steps);

/// Checks that a picture or video can be decoded as far as clips of it may need it. Errors: those of pixels_of().
/// Cost: decodes it.
void check_decodes(const DrawnPictures& drawn, int64_t index);

/// Decodes a part of a picture or video of one of the buckets, as the lists have them: [3, h, w] in [-1, 1], or of a
/// model of clips [3, T, h, w]. Errors: those of pixels_of() and data::read_clip(). Memory: the result and one frame of
/// the video.
at::Tensor pixels_of_part(const DrawnPictures& drawn, int64_t index, const data::BucketShape& part);

}  // namespace colossal::run
