// Textual inversion (arXiv:2208.01618): words whose vectors a run learns, while all weights stay as they are, and the
// files that have such vectors: `learned_embeds.safetensors` of diffusers, {word: [rows, features]}, and files of other
// programs with one tensor `emb_params`, or for SDXL and Stable Diffusion 3 with `clip_l` and `clip_g`. Their word is
// the name of the file.
//
//   const std::vector<run::LearnedWord> words = run::read_words({"learned_embeds.safetensors", "moon.safetensors"});
//   words.front().word, words.front().rows.sizes();                       // "<cat>", [1, 768]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/adapter_kinds.h"
#include "colossal/run/config.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/text/captions.h"

namespace colossal::run {

struct PipelineSource;

/// Value of adapter.kind of a run that learns words.
inline constexpr char kWordsKind[] = "textual-inversion";

/// A word with its vectors.
struct LearnedWord {
  std::string word{};   ///< as captions have it: "<cat>"
  std::string start{};  ///< word whose vectors it starts from; empty = vectors of zeros
  at::Tensor rows{};    ///< [rows, features] on the host; undefined = of a run that learns it
  at::Tensor second{};  ///< those of a second text encoder, of as many rows; undefined = the word has one encoder
};

/// Returns true for a run that learns words.
bool learns_words(const Config& config);
bool is_words_run(const std::string& path);

/// Returns the words of adapter.targets, "WORD" or "WORD=START". Errors ("adapter"): none; an empty or a repeated word.
std::vector<LearnedWord> words_of(const LowRankKeys& keys);

/// Returns the keys with one vector for each word, unless the config says another number.
LowRankKeys with_vectors(const Config& config, LowRankKeys keys);

/// Returns the row of adapter.kind = kWordsKind: the vectors within a model alone train and are saved.
AdapterKind words_kind();

/// Reads the words of files, of folders and of runs. Errors ("adapter"): a file of Python objects (.pt, .bin), which
/// can run code; no such file; tensors that are no vectors, all listed; other numbers of vectors for two encoders; a
/// word that occurs twice.
std::vector<LearnedWord> read_words(const std::vector<std::string>& paths);

/// Returns the words as the text encoder of that number reads them, of a pipeline whose first `encoders` ones are of
/// CLIP. Errors ("adapter"): words for another number of encoders.
std::vector<LearnedWord> words_of_encoder(std::vector<LearnedWord> words, int64_t encoder, int64_t encoders);

/// Returns the vectors of all words one after the other, [rows, features]. Errors ("adapter"): another number of
/// features than `features`, with both.
at::Tensor rows_of(const std::vector<LearnedWord>& words, int64_t features);

/// Returns the words as captions replace them by ids; `rows`: the vectors of a word that has none yet.
std::vector<text::CaptionWord> caption_words(const std::vector<LearnedWord>& words, int64_t rows = 1);

/// Writes the vectors of each text encoder within the model into those of `tensors` that have them, of `parameters`.
/// Collective, as fill_adapters().
void fill_words(const std::vector<at::Tensor>& rows, const models::ModelShape& shape, const nn::Parameters& parameters,
                const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh);

/// Returns the vectors with which the words of a run start, [rows, features]: those of its files (adapter.from), or
/// each that of the first token of LearnedWord::start. `table`: the vectors of the tokens of that text encoder, as in
/// words_of_encoder(). Errors ("adapter"): words of another name than those of adapter.from; another number of vectors
/// or features; those of words_of_encoder().
at::Tensor first_rows(const LowRankKeys& keys, const text::Captions& captions, const at::Tensor& table,
                      int64_t encoder = 0, int64_t encoders = 1);

/// Writes the words of a run as `to`/learned_embeds.safetensors, or of two text encoders each as `to`/WORD.safetensors.
/// Errors: those of read_words(); ("export") a word that is no name of a file; ("file") it cannot be written.
void export_words(const std::string& run, const std::string& to);

}  // namespace colossal::run
