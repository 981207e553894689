#include "colossal/data/texts/samples.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"

namespace colossal::data {

TextSamples::TextSamples(Corpus corpus, int64_t sequence, Documents documents)
    : corpus_(std::move(corpus)), sequence_(sequence), documents_(documents) {
  require(sequence >= 1, "data", "the sequence must have at least 1 token: got ", sequence);
  require(corpus_.size() > sequence, "data", "the data is shorter than one sequence: it has ", corpus_.size(),
          " tokens, a sequence of ", sequence, " and its last label need ", sequence + 1,
          "; name more text in data.path, or lower data.sequence or data.held_out");
}

tensor::Batch make_text_batch(int64_t rows, int64_t sequence, Documents documents) {
  const auto zeros = [&] { return at::zeros({rows, sequence}, at::kLong); };
  return text_batch(zeros(), zeros(), zeros(), documents == Documents::Separate ? zeros() : at::Tensor());
}

void fill_text_row(const int64_t* ids, Documents documents_kept, int64_t end_id, tensor::Batch& batch, int64_t row) {
  const int64_t sequence = batch.at("ids").size(1);
  int64_t* tokens = batch.at("ids").mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* labels = batch.at("labels").mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* positions = batch.at("positions").mutable_data_ptr<int64_t>() + row * sequence;
  const bool are_separate = documents_kept == Documents::Separate;
  int64_t* documents = are_separate ? batch.at("documents").mutable_data_ptr<int64_t>() + row * sequence : nullptr;
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
  return {{"files", corpus_.contents()},
          {"end_id", corpus_.end_id()},
          {"vocabulary", corpus_.vocabulary_size()},
          {"sequence", sequence_}};
}

}  // namespace colossal::data
