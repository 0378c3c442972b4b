"""Certificates for tests, made on the spot: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates, and keeps all of them in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.cert = directory / f"{name}.crt"
        certificate = self._builder(self._name, self._key.public_key())
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._write(self.cert, certificate)

    def sign(self, name: str) -> Pair:
        """Make a certificate for this machine's loopback address."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = self._builder(subject, key.public_key())
        certificate = certificate.add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        self._write(pair.cert, certificate)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            subject_name=subject,
            issuer_name=self._name,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - DAY,
            not_valid_after=now + DAY,
        )

    def _write(self, path: Path, certificate: x509.CertificateBuilder) -> None:
        signed = certificate.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
