// The binary files of CIFAR-10 (Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once
#include <string>

#include "colossal/data/pictures/image_samples.h"

namespace colossal::data {

enum class CifarPart {
  Training,  ///< data_batch_*.bin
  Test,      ///< test_batch*.bin
};

/// Returns all images of one part, from its files in `folder` in the order of their names. A file may be compressed
/// (.bin.gz). A file consists of records: one byte with the label and 3072 bytes with the pixels, which are red, green
/// and blue, each 32 x 32 by rows.
///
/// Errors: throws Error("data", ...) if the folder or the files are missing (the message says which files to put
///         where), a file exists twice (uncompressed and compressed), a length is no whole number of records, or a
///         label is above 9.
/// Memory: 3 KB per image, 154 MB for the 50,000 images of the whole training part.
ImageSet read_cifar(const std::string& folder, CifarPart part);

}  // namespace colossal::data
