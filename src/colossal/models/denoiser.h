// Models that predict the noise of pictures or clips: what an objective and a sampler need to know of them.
//
//   const models::DenoiserSizes sizes = models::denoiser_of(shape);
//   const at::Tensor predicted = models::predicted_picture(shape, end[0], *step.batch);  // [B, outputs, height, width]
//
// A family sets DenoiserSizes in Architecture::settle. Its model reads these fields:
//
//   noised   the noised picture or latent [B, C, height, width]: Dim::Row, then three times Dim::Other; converted to
//            the dtype of the model. A model with DenoiserSizes::beside gets those channels after it. A model with
//            DenoiserSizes::frames reads clips [B, C, frames, height, width] of any sizes
//   times    the noise level of each row, as the model shall see it [B] (0 to 999 of 1,000 levels; of a flow 1,000 t)
//   classes  the class of each row [B]; the index `classes` is the null class, which samples put in place of a dropped
//            label. Only of a model with classes
//   text     the states of a text encoder for each row's caption [B, text_tokens, text]: Dim::Row, Dim::Other,
//            Dim::Feature. Only of a model with DenoiserSizes::text
//   pooled   one state of each row's whole caption [B, pooled]: Dim::Row, Dim::Other. Only of a model with
//            DenoiserSizes::pooled
//   sizes    for each row the height and width of the picture before it was cut, the top and left of the cut, and the
//            height and width to draw, in pixels, [B, 6]: Dim::Row, Dim::Other. Only of a model with
//            DenoiserSizes::sizes
//   guidance the strength of classifier-free guidance that the prediction of each row shall have [B], such as 3.5. Only
//            of a model with DenoiserSizes::told_guidance
//   control  the control picture of each row in [0, 1], [B, 3, H, W]: Dim::Row, then three times Dim::Other. Only of a
//            model with a ControlNet within it (models/unet_control_net.h)
//   image    the embedding of the picture that each row shall resemble [B, features]: Dim::Row, Dim::Other; zeros tell
//            it of none. Only of a model with an IP-adapter within it (models/unet_image_prompt.h)
//   ids      in place of text, the tokens of the caption, int64 [B, 77]: of a model with its text encoder within it
//            (models/clip_text_within.h)
//
// A model of clips may also read these. A batch may leave out all but the first:
//
//   fps        the frame rate of each row [B], in frames of pixels a second. Of a model with DenoiserSizes::reads_rate
//   given      int64 [B, frames]: 1 = the frame is given. It is not noised, so the model treats it as one of time 0.
//              For a model with DenoiserSizes::noises_given it is noised like the other frames
//   shown      [B, C, frames, height, width]: the given frames as they are. The other frames of it are not read. Of a
//              model with DenoiserSizes::noises_given; a batch with `given` must have it
//   text_mask  int64 [B, text_tokens]: 1 = a token of the caption, 0 = a pad, which no layer reads. Of a model with
//              DenoiserSizes::masks_text
//   untold     int64 [B]: 1 = the row reads the model's own null text in place of its caption. Of such a model
//
// end[0] is the whole prediction on every rank of the last stage, in patches and in fp32 at least (nn::Outputs), also
// in layouts that split features or tokens. So each rank computes the loss of all rows of the micro-batch.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/ops/convolution.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The numbers in the field `sizes`.
inline constexpr int64_t kPictureSizes = 6;

/// Returns the sizes of a model that predicts the noise of pictures or clips. Errors ("objective"): another kind of
/// model.
DenoiserSizes denoiser_of(const ModelShape& shape);

/// Returns what rows are told, as the field of its number of dimensions: classes [B], ids [B, T] or text
/// [B, T, features]. Errors ("data"): another number of dimensions.
tensor::Batch told_batch(const at::Tensor& told);

/// Returns what `rows` rows are told of pictures or frames of `cells`, on meta: classes, or the states of captions, and
/// conditions_of(), in `dtype`.
tensor::Batch example_told(const ModelShape& shape, int64_t rows, const ops::PictureSize& cells,
                           at::ScalarType dtype = at::kFloat);

/// Returns a batch of `noised`, `times` and the fields of `told`.
tensor::Batch denoiser_batch(const at::Tensor& noised, const at::Tensor& times, const tensor::Batch& told);

/// Returns a batch on meta with the fields above that every row has, of `rows` pictures or clips of the sizes of the
/// shape.
tensor::Batch example_noised(const ModelShape& shape, int64_t rows);

/// Returns the sizes of the pictures, or of the frames of clips, in the field `noised` of a batch. They may differ from
/// batch to batch, and from those of the shape. Errors ("data"): no such field; neither four nor five dimensions.
ops::PictureSize picture_size(const tensor::Batch& batch);

/// Returns how many tokens of a sample follow each other in one sequence: the patches of its picture, or of its clip;
/// of a frame, if blocks attend over two axes in turn. Without the field `noised` they are the positions of the shape,
/// at least 1. Errors: as picture_size().
int64_t sequence_positions(const ModelShape& shape, const tensor::Batch& batch);

/// Returns the prediction for the pictures or clips of a batch, of the sizes of `noised` but with `outputs` channels,
/// from the end of the model. For pictures this is [B, patches, features of a patch], for clips [B, patches of a frame,
/// frames, features of a patch]. Patches at the edges of sides that they do not divide are cut.
/// Errors ("model"): an end of other sizes. Errors ("data"): those of picture_size().
at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end, const tensor::Batch& batch);
/// Returns the same for pictures or clips of the sizes of the shape.
at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end);

}  // namespace colossal::models
