#include "colossal/data/text_samples.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"

namespace colossal::data {

TextSamples::TextSamples(Corpus corpus, int64_t sequence, Documents documents)
    : corpus_(std::move(corpus)), sequence_(sequence), documents_(documents) {
  require(sequence >= 1, "data", "the sequence must have at least 1 token: got ", sequence);
  require(corpus_.size() > sequence, "data", "the data is shorter than one sequence: it has ", corpus_.size(),
          " tokens, a sequence of ", sequence, " and its last label need ", sequence + 1,
          "; name more text in data.path, or lower data.sequence or data.held_out");
}

Batch make_text_batch(int64_t rows, int64_t sequence) {
  const auto zeros = [&] { return at::zeros({rows, sequence}, at::kLong); };
  return {zeros(), zeros(), zeros(), zeros()};
}

void fill_text_row(const int64_t* ids, Documents documents_kept, int64_t end_id, Batch& batch, int64_t row) {
  const int64_t sequence = batch.inputs.size(1);
  int64_t* tokens = batch.inputs.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* positions = batch.positions.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* documents = batch.documents.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t position = 0, document = 0;
  for (int64_t i = 0; i < sequence; ++i) {
    const bool ends = documents_kept == Documents::Separate && ids[i] == end_id;
    tokens[i] = ids[i];
    labels[i] = ends ? kIgnored : ids[i + 1];
    positions[i] = position++;
    documents[i] = document;
    if (ends) {
      position = 0;
      ++document;
    }
  }
}

Batch TextSamples::make(int64_t rows) const { return make_text_batch(rows, sequence_); }

void TextSamples::fill(int64_t index, uint64_t /*seed*/, Batch& batch, int64_t row) const {
  const bool has_parts = documents_ == Documents::Joined && !batch.wanted.empty();
  std::vector<int64_t> ids(sequence_ + 1);
  for (const TokenRun& run : has_parts ? batch.wanted : std::vector<TokenRun>{{0, sequence_}})
    corpus_.read(index * sequence_ + run.first, run.size + 1, ids.data() + run.first);
  fill_text_row(ids.data(), documents_, corpus_.end_id(), batch, row);
}

nlohmann::json TextSamples::traits() const {
  return {{"files", corpus_.contents()},
          {"end_id", corpus_.end_id()},
          {"vocabulary", corpus_.vocabulary_size()},
          {"sequence", sequence_}};
}

}  // namespace colossal::data
