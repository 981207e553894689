// Sizes that only some models have. Architecture::settle sets them (ModelShape::set), but OutputSizes, ValueSizes,
// OwnTextEncoder, LearnedWords, OwnControl and OwnImagePrompt; without them a model has the defaults.
//
//   shape.set(models::MixtureSizes{.experts = 8});
//   if (shape.part<models::MixtureSizes>().experts > 0) ...
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace colossal::models {

struct ModelShape;

/// A language model whose result for a token may depend on the length of its text (rotary positions of types dynamic
/// and longrope).
struct LongTexts {
  int64_t even_positions = 0;  ///< length up to which it does not; 0 = it never does
  bool even_beyond = false;    ///< true = all lengths above even_positions give a token the same result (longrope)
};

/// A language model in which every layer attends to a few tokens.
struct SlidingWindow {
  int64_t tokens = 0;  ///< number of them, including the token itself; 0 = some layers attend to all
};

/// A model whose head for tokens is replaced by one of a few outputs per token, such as a reward model
/// (models::with_outputs()).
struct OutputSizes {
  int64_t outputs = 0;  ///< number of them; 0 = the architecture's own head
};

/// A model that continues text with a second head, of one value per token (models::with_values()).
struct ValueSizes {
  bool has_values = false;
};

/// A mixture of experts.
struct MixtureSizes {
  int64_t experts = 0;  ///< number of experts of a mixture layer; 0 = the model is dense
};

/// A language model with layers after the last block that read the embedding again (models/multi_token.h).
struct MultiTokenSizes {
  int64_t layers = 0;  ///< number of them
};

/// The states of a text encoder that a denoiser reads.
enum class CaptionStates : uint8_t {
  None,    ///< none, but for the pooled state
  Normed,  ///< after all blocks and the last norm
  Hidden,  ///< after all blocks but the last, without a norm: hidden_states[-2] of transformers
};

/// What a denoiser reads of one text encoder (models/caption_parts.h).
struct CaptionPart {
  const char* preset = "";  ///< of the encoder that belongs to the model; "" = none
  int64_t tokens = 77;      ///< of a caption, with pads
  CaptionStates states = CaptionStates::Normed;
  bool pooled = false;     ///< it reads the pooled state
  bool is_after = false;   ///< its states are further tokens after those of the encoders before it
  bool is_masked = false;  ///< the encoder does not attend to pads, and the model gets the field `text_mask`
};

/// A model that predicts the noise of pictures or clips, or what else [diffusion] target says (models/denoiser.h).
struct DenoiserSizes {
  int64_t channels = 0;                    ///< of the noised picture or latent; 0 = another kind of model
  int64_t beside = 0;                      ///< further channels that it reads: a mask, and the picture outside of it
  int64_t height = 0, width = 0;           ///< of it, in cells: pixels or those of a latent
  int64_t patch = 1;                       ///< side of the patches in which the prediction is given
  int64_t outputs = 0;                     ///< channels of the prediction; twice `channels` with a variance
  int64_t classes = 0;                     ///< classes that it is told; the null class is one more
  int64_t text = 0;                        ///< features of the text states that it reads; 0 = it reads a class
  int64_t side = 1;                        ///< heights and widths must be divisible by this number of cells
  const char* target = "epsilon";          ///< default of [diffusion] target
  const char* schedule = "scaled-linear";  ///< default of [diffusion] schedule
  double guidance = 7.5;                   ///< default of [diffusion] guidance
  std::vector<CaptionPart> captions{};     ///< what it reads of captions; empty = it reads a class
  const char* vae = "";                    ///< preset of the autoencoder whose latents it draws; "" = pixels
  int64_t text_tokens = 77;                ///< number of text states, of all its encoders
  int64_t pooled = 0;                      ///< features of the one state of a whole text that it also reads; 0 = none
  int64_t sizes = 0;                       ///< numbers of the sizes of a picture that it is told; 0 = none
  bool told_guidance = false;              ///< it is told the strength of guidance, so one pass a step is enough
  int64_t frames = 0;                      ///< frames of a clip, of the latent if there is one; 0 = it draws pictures
  int64_t unread = 0;                      ///< further channels after those of the prediction, which nobody reads
  double sign = 1;                         ///< factor by which what it gives becomes the prediction
  const char* shift = "";                  ///< rule of diffusion.shift = "auto" (noise::automatic_shift())
  bool reads_rate = false;                 ///< it reads the field `fps`
  bool masks_text = false;  ///< it reads the fields `text_mask` and `untold`: pads are not read, and it has a null text
  bool noises_given = false;  ///< given frames are noised like the others, and it reads them clean in the field `shown`
  int32_t zero_tokens = 0;    ///< text states of zeros after the others, in place of an encoder that its folder lacks
};

/// A model with a table of positions (Stable Diffusion 3).
struct PositionTable {
  int64_t cells = 0;  ///< most cells of a side; 0 = pictures of any sizes
};

/// A model with attention: over what its blocks attend.
struct AttentionAxes {
  bool two = false;                 ///< true = each block over one of two axes of a hidden state (nn/axis_switch.h)
  const char* sequence = "tokens";  ///< else the one sequence, for messages: "text and picture"
};

/// A model whose norms divide features into groups (ops/group_norm.h), inside of layers that ranks cut.
struct NormGroupSizes {
  int64_t groups = 0;  ///< of each norm; 0 = the model has no such norm
};

/// A model that encodes pictures as latents and decodes latents as pictures (models/autoencoder.h), or clips
/// (models/autoencoder_clips.h).
struct AutoencoderSizes {
  int64_t channels = 0;           ///< of a latent; 0 = another kind of model
  int64_t factor = 1;             ///< pixels of a side for each cell of a latent
  double scaling = 1, shift = 0;  ///< a denoiser reads (sample - shift) * scaling
  int64_t encoder_blocks = 0;     ///< the first blocks of the model, which encode; the others decode
  int64_t pixel_channels = 3;     ///< of a picture
  int64_t height = 0, width = 0;  ///< of pictures in training, in pixels
  int64_t frames = 0;             ///< of clips in training; 0 = it takes pictures, and clips frame by frame
  int64_t frame_factor = 1;       ///< frames of pixels for each frame of a latent
  int64_t chunk_frames = 0;       ///< frames of a clip that are encoded and decoded on their own; 0 = whole clips
  bool rounds_up = false;         ///< sides that are no whole cells are rounded up; false = down
  int64_t frame_blocks = 0;       ///< so many first blocks, and from `frames_from` on the last ones, read frames alone
  int64_t frames_from = 0;
  std::vector<double> means{}, deviations{};  ///< of the channels a denoiser reads: scaled ones, normed; empty = 0, 1

  /// Returns the cells of a latent for a side of so many pixels.
  int64_t cells(int64_t pixels) const { return (pixels + (rounds_up ? factor - 1 : 0)) / factor; }
};

/// An autoencoder whose numbers may exceed fp16.
struct FloatRange {
  bool exceeds_fp16 = false;  ///< a denoiser with DenoiserSizes::sizes computes it in fp32 in place of fp16
};

/// A model that reads captions for a denoiser (models/text_encoder.h).
struct TextEncoderSizes {
  int64_t features = 0;     ///< of a token's state; 0 = another kind of model
  int64_t projection = 0;   ///< features of the projection of pooled states; 0 = none
  int64_t end_id = 0;       ///< id of the token that is pooled; 2 = the token of the largest id is
  bool begins = true;       ///< its captions start with a begin token, as CLIP's do; T5's do not
  bool reads_pads = false;  ///< tokens attend to the pads after them, unless these are masked
};

/// A model that embeds a picture for an adapter of a denoiser (models/image_encoder.h).
struct ImageEncoderSizes {
  int64_t features = 0;  ///< of an embedding; 0 = another kind of model
  int64_t side = 0;      ///< of the square pictures that it reads, in pixels
};

/// A denoiser whose first blocks are its text encoder, or of SDXL both (models/clip_text_within.h).
struct OwnTextEncoder {
  std::shared_ptr<const ModelShape> shape{};   ///< null = it reads states of captions
  std::shared_ptr<const ModelShape> second{};  ///< null = it has one; else `shape` is without its last block
  bool zeros_for_empty = false;                ///< two encoders: zeros take the place of the states of an empty caption
};

/// A text encoder with words that a run learns (models/clip_text_words.h).
struct LearnedWords {
  int64_t rows = 0;  ///< their vectors, with the ids after the vocabulary
};

/// A denoiser with a ControlNet within it (models/unet_control_net.h).
struct OwnControl {
  /// Channels of the layers that read the control picture. Each layer but the first halves its sides; empty = there is
  /// no ControlNet
  std::vector<int64_t> channels{};
  double scale = 1;  ///< factor of what the ControlNet adds
};

/// A denoiser with an IP-adapter within it (models/unet_image_prompt.h).
struct OwnImagePrompt {
  int64_t features = 0;  ///< of the embedding of a picture that it reads; 0 = there is no IP-adapter
  int64_t tokens = 4;    ///< that it makes of an embedding
  double scale = 1;      ///< factor of what attention to these tokens adds

  bool operator==(const OwnImagePrompt&) const = default;
};

/// A model with blocks before or after the `layers` of its shape, such as a stack of templates or a structure module.
/// All are Model::blocks, numbered from 0 in the order in which they run.
struct FurtherBlocks {
  int64_t before = 0, after = 0;
};

/// A model that folds proteins (models/folding/folding_model.h).
struct FoldingSizes {
  int64_t single = 0;             ///< features of a residue that are recycled; 0 = another kind of model
  int64_t pair = 0;               ///< features of a pair
  int64_t structure = 0;          ///< features of a residue in the structure module
  int64_t structure_layers = 0;   ///< layers of the structure module
  bool reads_alignments = false;  ///< it reads the fields of alignments; false = sequences alone
  int64_t templates = 0;          ///< most templates that it reads; 0 = none
  bool folds_complexes = false;   ///< it folds several chains
  int64_t passes = 4;             ///< default of how often it runs on a chain, with recycling
};

/// A model that reads a language model within it, which runs do not train: the parameters `embedding.` and those of its
/// first blocks. Adapters decide themselves what trains.
struct FrozenLanguageModel {
  int64_t blocks = 0;  ///< number of them; 0 = the model has none
};

/// A model whose attention reads latents (nn/latent_heads.h).
struct LatentSizes {
  int64_t cached = 0;  ///< elements of a token and layer in a cache; 0 = keys and values of each kv head are cached
};

}  // namespace colossal::models
