#include "colossal/run/objectives/data_keys.h"

#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

void StreamKeys::fields(Fields& f) {
  f.texts("sources", sources,
          "sources of JSON lines or Parquet, each `name=path`, mixed as weights says; replaces path");
  f.numbers("weights", weights, "",
            "relative sampling weight of each source, in the order of sources; empty = equal weights", 0);
  f.bytes("shuffle_bytes", shuffle_bytes, "shuffle buffer per source (JSON lines, Parquet); 0 = records in file order");
}

void MaskedTokenKeys::fields(Fields& f) {
  stream.fields(f);
  f.number("masked", masked, "of the tokens",
           "share of the tokens of each sample that a masked language model predicts; at least one token", 0, 1);
  f.number("masked_random", masked_random, "of masked",
           "share of the masked tokens that are replaced by a random token instead of the mask", 0, 1);
  f.number("masked_kept", masked_kept, "of masked", "share of the masked tokens that are left unchanged", 0, 1);
}

void TargetKeys::fields(Fields& f) {
  f.text("target_column", target_column,
         "member that holds the target text of an encoder-decoder model (JSON lines, Parquet)");
  f.number("noise_density", noise_density, "of the tokens",
           "share of tokens hidden in spans, which an encoder-decoder model restores from plain text in path (T5: "
           "0.15); 0 = path holds pairs of texts",
           0, 0.9);
  f.number("mean_span", mean_span, "tokens", "mean length of a hidden span, with noise_density", 1, 1 << 16);
}

void ClassKeys::fields(Fields& f) {
  f.text("label_column", label_column, "member that holds the class of the text (JSON lines, Parquet)");
  f.flag("augment", augment,
         "random augmentation of training images: mirrored, and shifted or (image folder) cropped; drawn shapes are "
         "mirrored alone");
  f.numbers(
      "image_mean", image_mean, "",
      "mean of red, green and blue on a scale of 0 to 1, subtracted from images of an image folder and drawn shapes", 0,
      1);
  f.numbers(
      "image_deviation", image_deviation, "",
      "standard deviation of red, green and blue, by which images of an image folder and drawn shapes are divided",
      1e-6);
  f.previously("least_area")
      .number("min_crop_area", min_crop_area, "of the picture",
              "minimum area of a random crop, for image folders with augment", 1e-3, 1);
}

void ChatKeys::fields(Fields& f) {
  stream.fields(f);
  f.choice("answers", answers, {"all", "last", "everything"},
           "messages of the assistant that are trained: all, or the last of each chat; everything = prompts, too");
  f.text("chat_template", chat_template, "Jinja file that renders chats; empty = the template of the model");
  f.flag(
      "packing", packing,
      "several texts share a row of sequence tokens, separately; false = one text a row, and the rows of a batch end "
      "with the longest");
  f.choice("too_long", too_long, {"cut", "drop", "refuse"},
           "what happens to a text of more than sequence tokens: it is cut at its end, left out or an error");
  f.text("pretraining", pretraining,
         "ppo with alignment.ptx: JSON lines or Parquet of texts that the policy learns in addition to its answers; "
         "empty = none");
}

std::vector<DataKeys> built_in_data_keys() {
  return {{"next-token", StreamKeys{}},
          {"masked-token", MaskedTokenKeys{}},
          {"target", TargetKeys{}},
          {"class", ClassKeys{}},
          {"alignment", ChatKeys{}},
          {kDiffusion, DrawnDataKeys{}},
          {kReconstruction, ReconstructionDataKeys{}}};
}

}  // namespace colossal::run
