// SPDX-License-Identifier: MIT
#include "instantiated.hpp"

template class redlatch::Runtime<redlatch::HiredisTransport>;
template class redlatch::Core<redlatch::HiredisTransport>;
template class redlatch::Client<redlatch::HiredisTransport>;
template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::RLockWire>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockWire>;
template class redlatch::RLock<redlatch::HiredisTransport>;
template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::FairWire>;
template class redlatch::FairLockState<redlatch::HiredisTransport>;
template class redlatch::FairLock<redlatch::HiredisTransport>;
