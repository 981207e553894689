#include "colossal/data/texts/samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"

namespace colossal::data {

TextSamples::TextSamples(Corpus corpus, int64_t sequence, Documents documents)
    : corpus_(std::move(corpus)), sequence_(sequence), documents_(documents) {
  require(sequence >= 1, "data", "the sequence must have at least 1 token: got ", sequence);
  require(corpus_.size() > sequence, "data", "the data is shorter than one sequence: it has ", corpus_.size(),
          " tokens, a sequence of ", sequence, " and its last label need ", sequence + 1,
          "; name more text in data.path, or lower data.sequence or data.held_out");
}

int64_t* row_of(const tensor::Batch& batch, const char* field, int64_t row) {
  const at::Tensor& rows = batch.at(field);
  return rows.mutable_data_ptr<int64_t>() + row * rows.size(1);
}

tensor::Batch make_text_batch(int64_t rows, int64_t sequence, Documents documents) {
  const auto zeros = [&] { return at::zeros({rows, sequence}, at::kLong); };
  return text_batch(zeros(), zeros(), zeros(), documents == Documents::Separate ? zeros() : at::Tensor());
}

void fill_text_row(const int64_t* ids, Documents documents_kept, int64_t end_id, tensor::Batch& batch, int64_t row) {
  const int64_t sequence = batch.at("ids").size(1);
  int64_t *tokens = row_of(batch, "ids", row), *labels = row_of(batch, "labels", row);
  int64_t* positions = row_of(batch, "positions", row);
  const bool are_separate = documents_kept == Documents::Separate;
  int64_t* documents = are_separate ? row_of(batch, "documents", row) : nullptr;
  int64_t position = 0, document = 0;
  for (int64_t i = 0; i < sequence; ++i) {
    const bool ends = are_separate && ids[i] == end_id;
    tokens[i] = ids[i];
    labels[i] = ends ? kIgnored : ids[i + 1];
    positions[i] = position++;
    if (are_separate) documents[i] = document;
    if (ends) {
      position = 0;
      ++document;
    }
  }
}

tensor::Batch TextSamples::make(int64_t rows) const { return make_text_batch(rows, sequence_, documents_); }

void TextSamples::fill(int64_t index, uint64_t /*seed*/, tensor::Batch& batch, int64_t row) const {
  const bool has_parts = documents_ == Documents::Joined && !batch.wanted.empty();
  std::vector<int64_t> ids(sequence_ + 1);
  for (const tensor::TokenRun& run : has_parts ? batch.wanted : std::vector<tensor::TokenRun>{{0, sequence_}})
    corpus_.read(index * sequence_ + run.first, run.size + 1, ids.data() + run.first);
  fill_text_row(ids.data(), documents_, corpus_.end_id(), batch, row);
}

nlohmann::json TextSamples::traits() const {
  nlohmann::json traits = corpus_.traits();
  traits["sequence"] = sequence_;
  return traits;
}

MaskedSamples::MaskedSamples(Corpus corpus, int64_t sequence, Documents documents, const Masking& masking)
    : texts_(corpus, sequence, documents), end_id_(corpus.end_id()), masking_(masking) {
  require(masking.mask_id >= 0 && masking.vocabulary > 0, "data",
          "masking needs a mask token and a vocabulary: got mask_id ", masking.mask_id, ", vocabulary ",
          masking.vocabulary);
}

void hide_tokens(tensor::Batch& batch, int64_t row, uint64_t seed, int64_t end_id, const Masking& masking) {
  const int64_t length = batch.at("ids").size(1);
  int64_t *tokens = row_of(batch, "ids", row), *labels = row_of(batch, "labels", row);
  std::fill(labels, labels + length, kIgnored);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < length; ++i)
    if (tokens[i] != end_id && tokens[i] != masking.begin_id) places.push_back(i);
  const auto all = static_cast<int64_t>(places.size());
  const int64_t wanted = std::min(all, std::max<int64_t>(1, std::llround(masking.share * static_cast<double>(all))));
  for (int64_t k = 0; k < wanted; ++k) {  // the first `wanted` steps of a shuffle draw the places
    std::swap(places[k], places[k + derive_seed(seed, 2 * k) % static_cast<uint64_t>(all - k)]);
    const int64_t place = places[k];
    labels[place] = tokens[place];
    const uint64_t draw = derive_seed(seed, 2 * k + 1);
    const double chance = static_cast<double>(draw >> 11) * 0x1p-53;
    if (chance < masking.kept) continue;
    const bool random = chance < masking.kept + masking.random;
    tokens[place] = random ? static_cast<int64_t>(derive_seed(draw, 0) % static_cast<uint64_t>(masking.vocabulary))
                           : masking.mask_id;
  }
}

void MaskedSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  tensor::Batch whole = batch;  // the draw of hidden tokens reads whole rows
  whole.wanted.clear();
  texts_.fill(index, seed, whole, row);
  hide_tokens(batch, row, seed, end_id_, masking_);
}

nlohmann::json MaskedSamples::traits() const {
  nlohmann::json traits = texts_.traits();
  traits["masked"] = {masking_.share, masking_.random, masking_.kept, masking_.mask_id};
  return traits;
}

}  // namespace colossal::data
