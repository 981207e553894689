// Files of torch.save: tensors of both forms, what is refused, and damaged files.
#include "colossal/formats/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "colossal/base/error.h"
#include "colossal/formats/npy.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::formats::torch_file_test {
namespace {

using test::call_piece;
using test::dict_piece;
using test::function_piece;
using test::number_piece;
using test::ordered_piece;
using test::storage_piece;
using test::tensor_piece;
using test::torch_zip;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<float> kValues{0, 1, 2, 3, 4, 5};

/// A tensor of two elements from `first` on, in the storage "0", which has six.
std::string pair_piece(int64_t first = 0) {
  return tensor_piece(storage_piece("FloatStorage", "0", 6), first, {2}, {1});
}

std::string parameter_piece(const std::string& tensor) {
  return call_piece(function_piece("torch._utils", "_rebuild_parameter"), {tensor, "\x88", ordered_piece({})});
}

/// The dict of a model: a transposed tensor, one that shares its storage, and a parameter.
std::string model_piece() {
  const std::string storage = storage_piece("FloatStorage", "0", 6);
  return ordered_piece({{"t", tensor_piece(storage, 0, {3, 2}, {1, 3})},
                        {"w", pair_piece(4)},
                        {"p", parameter_piece(tensor_piece(storage_piece("LongStorage", "1", 1), 0, {}, {}))},
                        {"_extra_state", "N"}});
}

class TorchFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!reads_zips()) GTEST_SKIP() << "built without libzip";
  }
  std::string write(const std::string& bytes) const { return folder_.write("x.pt", bytes); }
  std::string write_piece(const std::string& piece) const {
    return write(torch_zip(piece, {{"0", test::raw(kValues)}}));
  }
  std::vector<std::string> names_of(const std::string& piece) const {
    std::vector<std::string> names;
    const TorchFile file(write_piece(piece));
    for (const auto& [name, tensor] : file.tensors()) names.push_back(name);
    return names;
  }
  std::string refusal(const std::string& bytes) const {
    const std::string path = write(bytes);
    return test::thrown_message([&] { TorchFile file(path); });
  }
  std::string refusal_of_piece(const std::string& piece) const {
    return refusal(torch_zip(piece, {{"0", test::raw(kValues)}}));
  }
  test::TemporaryFolder folder_;
};

std::vector<float> floats_of(const TorchFile& file, const std::string& name) {
  const StridedTensor& tensor = file.tensors().at(name);
  std::vector<float> values(static_cast<size_t>(tensor.span()));
  file.read(tensor, values.data());
  return values;
}

TEST_F(TorchFiles, ReadsTensorsOfTheZipForm) {
  const std::string path =
      write(torch_zip(model_piece(), {{"0", test::raw(kValues)}, {"1", test::raw(std::vector<int64_t>{7})}}));
  EXPECT_TRUE(is_torch_file(path));
  const TorchFile file(path);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_THAT(file.tensors().at("t").shape, ElementsAre(3, 2));
  EXPECT_THAT(file.tensors().at("t").strides, ElementsAre(1, 3));
  EXPECT_EQ(floats_of(file, "t"), kValues);
  EXPECT_THAT(floats_of(file, "w"), ElementsAre(4, 5));
  const StridedTensor& number = file.tensors().at("p");
  int64_t value = 0;
  ASSERT_EQ(number.span(), 1);
  file.read(number, &value);
  EXPECT_EQ(value, 7);
}

TEST(TorchFile, ReadsTheOldForm) {
  const test::TemporaryFolder folder;
  // "v" is in a part of its storage: three elements from the second on
  const std::string part = storage_piece("FloatStorage", "0", 6,
                                         test::tuple_piece({test::text_piece("v"), number_piece(2), number_piece(3)}));
  const std::string path = folder.write(
      "x.bin", test::torch_old(ordered_piece({{"v", tensor_piece(part, 1, {2}, {1})},
                                              {"w", pair_piece(1)},
                                              {"y", tensor_piece(storage_piece("FloatStorage", "1", 1), 0, {}, {})}}),
                               {{"0", test::raw(kValues)}, {"1", test::raw(std::vector<float>{9})}}, 4));
  EXPECT_TRUE(is_torch_file(path));
  const TorchFile file(path);
  EXPECT_THAT(floats_of(file, "v"), ElementsAre(3, 4));
  EXPECT_THAT(floats_of(file, "w"), ElementsAre(1, 2));
  EXPECT_THAT(floats_of(file, "y"), ElementsAre(9));
  const std::string whole = test::read_all(path);
  folder.write("x.bin", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(test::thrown_message([&] { TorchFile cut(path); }), HasSubstr("ends within the storage 1"));
}

TEST_F(TorchFiles, FindsTheWeightsAmongOtherValues) {
  const std::string a = dict_piece({{"a", pair_piece()}}), b = dict_piece({{"b", pair_piece()}});
  const std::string other = call_piece(function_piece("argparse", "Namespace"), {});
  EXPECT_THAT(names_of(dict_piece({{"epoch", "K\x03"}, {"hyper_parameters", other}, {"state_dict", a}})),
              ElementsAre("a"));
  EXPECT_THAT(names_of(dict_piece({{"state_dict", a}, {"ema", dict_piece({{"params", b}, {"decay", "K\x01"}})}})),
              ElementsAre("b"));
  EXPECT_THAT(names_of(dict_piece({{"model", a}, {"optimizer", b}})), ElementsAre("a"));
  EXPECT_THAT(names_of(dict_piece({{"net", a}, {"epoch", "K\x03"}})), ElementsAre("a"));
  EXPECT_THAT(refusal_of_piece(dict_piece({{"net", a}, {"critic", b}})),
              HasSubstr("must hold one dict of weights: got net, critic"));
  EXPECT_THAT(refusal_of_piece(dict_piece({{"epoch", "K\x03"}, {"args", other}})),
              HasSubstr("got no tensors, and an object that needs argparse.Namespace, which is not run"));
}

TEST_F(TorchFiles, RefusesWeightsThatNeedOtherFunctions) {
  const std::string array = call_piece(function_piece("numpy.core.multiarray", "_reconstruct"), {});
  EXPECT_THAT(refusal_of_piece(dict_piece({{"a", pair_piece()}, {"b", array}})),
              HasSubstr("x.pt: b must be a tensor: got one that needs the function numpy.core.multiarray._reconstruct, "
                        "which is not run; load the file in Python"));
  EXPECT_THAT(refusal_of_piece(call_piece(function_piece("os", "system"), {test::text_piece("true")})),
              HasSubstr("must hold a dict of weights: got an object that needs os.system, which is not run"));
  EXPECT_THAT(refusal_of_piece(dict_piece({{"a", parameter_piece(array)}})), HasSubstr("_reconstruct, which is not"));
  EXPECT_THAT(
      refusal_of_piece(ordered_piece({{"a", tensor_piece(storage_piece("QInt8Storage", "0", 6), 0, {2}, {1})}})),
      HasSubstr("must have elements of a known type: got torch.QInt8Storage"));
}

TEST_F(TorchFiles, RefusesTensorsOutsideTheirStorage) {
  const std::string storage = storage_piece("FloatStorage", "0", 6);
  const auto refused = [&](int64_t first, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    return refusal_of_piece(dict_piece({{"a", tensor_piece(storage, first, sizes, strides)}}));
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(refused(0, {6}, {1}), "");
  EXPECT_EQ(refused(0, {0, 1000}, {1, 1}), "");
  EXPECT_THAT(refused(1, {6}, {1}), HasSubstr("a must be within its storage: got 24 bytes from byte 4 on, of 24"));
  EXPECT_THAT(refused(-1, {1}, {1}), HasSubstr("got element -1"));
  EXPECT_THAT(refused(huge, {1}, {1}), HasSubstr("got element"));
  EXPECT_THAT(refused(0, {2, 2}, {huge, huge}), HasSubstr("its shape overflows"));
  EXPECT_THAT(refused(0, {huge, huge}, {0, 0}), HasSubstr("its shape overflows"));
  EXPECT_THAT(refused(0, {1 << 21}, {0}), HasSubstr("more elements than its storage"));
  EXPECT_THAT(refused(0, {2}, {-1}), HasSubstr("of at least 0: got 2 and -1"));
  EXPECT_THAT(refused(0, {2}, {}), HasSubstr("a stride for each"));
  EXPECT_THAT(refused(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)), HasSubstr("at most 64 sizes"));
}

TEST_F(TorchFiles, RefusesOtherFiles) {
  const std::string weights = dict_piece({{"a", pair_piece()}});
  EXPECT_THAT(refusal("hello"), HasSubstr("must be a file of torch.save: got bytes that do not begin as one"));
  EXPECT_THAT(refusal(test::pickle_of(weights)), HasSubstr("x.pt: the pickle is damaged"));
  EXPECT_THAT(refusal(test::zip_of({{"a.npy", "x"}})), HasSubstr("got a zip file without data.pkl"));
  EXPECT_THAT(refusal(test::zip_of({{"x/data.pkl", ""}, {"x/constants.pkl", ""}})),
              HasSubstr("got one of TorchScript"));
  EXPECT_THAT(refusal(torch_zip(weights, {{"0", test::raw(kValues)}}, "big")), HasSubstr("must be little-endian"));
  EXPECT_THAT(refusal(torch_zip(weights, {})), HasSubstr("a must have the storage 0: got none"));
  EXPECT_THAT(refusal(torch_zip(weights, {{"0", "1234"}})), HasSubstr("must have 6 elements: got 4 bytes"));
  EXPECT_FALSE(is_torch_file(folder_.write("y", "hello")));
  EXPECT_FALSE(is_torch_file(folder_.path()));
}

/// Reads every tensor of a file, or finds that it is refused with an error of these components. Returns true if it was.
bool reads_or_refuses(const std::function<std::unique_ptr<TensorFile>()>& open) {
  try {
    const std::unique_ptr<TensorFile> file = open();
    for (const auto& [name, tensor] : file->tensors()) {
      std::vector<char> bytes(static_cast<size_t>(tensor.span() * bytes_of(tensor.type)));
      file->read(tensor, bytes.data());
    }
    return false;
  } catch (const Error& error) {
    EXPECT_THAT(error.component(), testing::AnyOf("zip", "npy", "pickle", "torch file", "file")) << error.what();
    return true;
  }
}

int mutated_files() {
  const char* asked = std::getenv("COLOSSAL_MUTATED_FILES");
  return asked ? std::atoi(asked) : 1000;
}

/// Makes COLOSSAL_MUTATED_FILES mutated files (default 1000), a third of them of each form. Each must be refused, or
/// all of its tensors must be readable.
TEST_F(TorchFiles, ReadsOrRefusesMutatedFiles) {
  const std::vector<std::pair<std::string, std::string>> storages{{"0", test::raw(kValues)},
                                                                  {"1", test::raw(std::vector<float>{7, 8})}};
  const std::string piece =
      ordered_piece({{"t", tensor_piece(storage_piece("FloatStorage", "0", 6), 0, {3, 2}, {1, 3})},
                     {"p", parameter_piece(tensor_piece(storage_piece("FloatStorage", "1", 2), 1, {1}, {1}))}});
  const std::string array = test::npy_of("<f4", "(2, 3)", test::raw(kValues));
  const std::string forms[] = {torch_zip(piece, storages), test::torch_old(piece, storages, 4),
                               test::zip_of({{"a.npy", array}, {"b.npy", array, true}})};
  const int count = mutated_files();
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string bytes = forms[i % 3];
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    const std::string path = write(bytes);
    refused += reads_or_refuses([&]() -> std::unique_ptr<TensorFile> {
      if (i % 3 == 2) return std::make_unique<NpzFile>(path);
      return std::make_unique<TorchFile>(path);
    });
  }
  EXPECT_GT(refused, count / 4);
  EXPECT_LT(refused, count);
}

/// A checksum hides most of what a changed pickle may do, so here it is changed before the file is made.
TEST_F(TorchFiles, ReadsOrRefusesMutatedPickles) {
  const std::string piece = dict_piece({{"state_dict", model_piece()}, {"a", pair_piece()}});
  const int count = mutated_files() / 3;
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string changed = piece;
    for (unsigned changes = 1 + random() % 2; changes > 0; --changes)
      changed[random() % changed.size()] = static_cast<char>(random());
    const std::string path =
        write(torch_zip(changed, {{"0", test::raw(kValues)}, {"1", test::raw(std::vector<int64_t>{7})}}));
    refused += reads_or_refuses([&] { return std::make_unique<TorchFile>(path); });
  }
  EXPECT_GT(refused, count / 4);
  EXPECT_LT(refused, count);
}

}  // namespace
}  // namespace colossal::formats::torch_file_test
